"""Stores whose values have headers (KIP-1271), through the Processor API; comments say what Java 4.3.1 logs, if tried."""

from __future__ import annotations

import pytest

from millrace.processor import Processor
from millrace.records import Headers, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import AggregationWithHeaders, Stores, ValueTimestampHeaders
from millrace.testing import TopologyTestDriver
from millrace.topology import Topology

S, L = Serdes.string(), Serdes.long()
H1 = Headers([("h1", b"x")])
CAUSE = Headers([("rec", b"r")])
EARLY, LATE = Windowed("k", Window(0, 10)), Windowed("k", Window(20, 30))
EARLY_KEY = bytes.fromhex("6b000000000000000a0000000000000000")

SESSION_SUPPLIERS = {
    "headers": Stores.persistent_session_store_with_headers("s", 100_000),
    "plain": Stores.persistent_session_store("s", 100_000),
    "memory": Stores.in_memory_session_store("s", 100_000),
}


def sessions(kind, *, caching=False):
    """Return the builder of a session store with headers."""
    builder = Stores.session_store_with_headers_builder(SESSION_SUPPLIERS[kind], S, L)
    return builder.with_caching_enabled() if caching else builder


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("kind", SESSION_SUPPLIERS)
def test_sessions_come_back_with_the_headers_their_format_keeps(make_task, kind, caching):
    """With a plain supplier, headers are lost once values are written through; reads of one session and of many agree."""
    task = make_task(cache_bytes=10**6)
    store = task.open(sessions(kind, caching=caching))
    store.put(EARLY, AggregationWithHeaders(7, H1))
    store.put(LATE, AggregationWithHeaders(8))
    kept = H1 if caching or kind != "plain" else Headers()
    assert store.fetch_session("k", 0, 10) == AggregationWithHeaders(7, kept)
    assert list(store.fetch("k")) == [(EARLY, AggregationWithHeaders(7, kept)), (LATE, AggregationWithHeaders(8))]
    store.flush()
    assert list(store.backward_find_sessions("k", 0, 100))[-1].value.aggregation == 7
    assert list(store.find_sessions("k", 0, 5)) == [(EARLY, store.fetch_session("k", 0, 10))]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("kind", SESSION_SUPPLIERS)
def test_changelog_of_sessions_is_javas(make_task, kind, caching):
    """The aggregate's bytes and headers; a deletion, even by an empty aggregate, has the headers of the record that caused it."""
    task = make_task(cache_bytes=10**6)
    store = task.open(sessions(kind, caching=caching))
    log = task.log("s")
    task.at(100, headers=CAUSE)
    store.put(EARLY, AggregationWithHeaders(7, H1))
    store.flush()
    assert log[-1][:3] == (EARLY_KEY, bytes.fromhex("0000000000000007"), 100)
    assert log[-1].headers == H1
    for step, delete in enumerate(
        (
            lambda: store.put(EARLY, None),
            lambda: store.put(EARLY, AggregationWithHeaders(None, H1)),
            lambda: store.remove(EARLY),
        )
    ):
        task.at(101 + step, headers=CAUSE)
        store.put(EARLY, AggregationWithHeaders(7, H1))
        store.flush()
        delete()
        store.flush()
        assert log[-1][:3] == (EARLY_KEY, None, 101 + step)
        assert log[-1].headers == CAUSE
        assert store.fetch_session("k", 0, 10) is None


@pytest.mark.parametrize("kind", ["headers", "memory"])
def test_sessions_are_restored_with_their_headers(make_task, kind):
    """From the changelog alone."""
    task = make_task("old")
    store = task.open(sessions(kind))
    store.put(EARLY, AggregationWithHeaders(7, H1))
    store.put(LATE, AggregationWithHeaders(8))
    store.remove(LATE)
    restored = make_task("new").open(sessions(kind))
    restored.restore(task.log("s"))
    assert list(restored.fetch("k")) == [(EARLY, AggregationWithHeaders(7, H1))]


def test_sessions_survive_a_restart_with_their_headers(make_task):
    """On disk they are in the session format with headers, which stores without headers in their values can also read."""
    task = make_task()
    store = task.open(sessions("headers"))
    store.put(EARLY, AggregationWithHeaders(7, H1))
    task.commit(store)
    store.close()
    store = task.open(sessions("headers"))
    assert store.fetch_session("k", 0, 10) == AggregationWithHeaders(7, H1)
    store.close()
    plain = task.open(Stores.session_store_builder(SESSION_SUPPLIERS["headers"], S, L))
    assert plain.fetch_session("k", 0, 10) == 7


def test_builders_tell_the_format():
    """Stores in memory use the format of their values."""
    assert sessions("headers").value_format == "headers"
    assert sessions("memory").value_format == "headers"
    assert sessions("plain").value_format == "plain"


@pytest.mark.parametrize("caching", [False, True])
def test_values_that_are_none_delete(make_task, caching):
    """Java's `make` returns null for them; in key-value and window stores, with the headers of the record that caused it."""
    task = make_task(cache_bytes=10**6)
    key_values = Stores.timestamped_key_value_store_with_headers_builder(Stores.in_memory_key_value_store("kv"), S, L)
    windows = Stores.timestamped_window_store_with_headers_builder(Stores.in_memory_window_store("w", 100, 10), S, L)
    if caching:
        key_values.with_caching_enabled()
        windows.with_caching_enabled()
    task.at(5, headers=CAUSE)
    for builder, at in ((key_values, ()), (windows, (0,))):
        store = task.open(builder)
        store.put("k", ValueTimestampHeaders(1, 7, H1), *at)
        store.flush()
        store.put("k", ValueTimestampHeaders(None, 8, H1), *at)
        store.flush()
        last = task.log(builder.name)[-1]
        assert (last.value, last.headers) == (None, CAUSE)


class Remember(Processor):
    """Puts each record into all three kinds of stores, with its headers, and forwards what they had for the key."""

    def process(self, record):
        key_values, windows, sessions = (self.context.get_state_store(name) for name in ("kv", "w", "s"))
        entry = ValueTimestampHeaders(record.value, record.timestamp, record.headers)
        session = Windowed(record.key, Window(0, 10))
        old = key_values.get(record.key), windows.fetch(record.key, 0), sessions.fetch_session(record.key, 0, 10)
        key_values.put(record.key, entry)
        windows.put(record.key, entry, 0)
        sessions.put(session, AggregationWithHeaders(record.value, record.headers))
        for store, found in zip(("kv", "w", "s"), old, strict=True):
            if found is not None:
                self.context.forward(record.with_key(store).with_value(found[0]).with_headers(found[-1]))


def test_processors_keep_headers_in_stores():
    """All three kinds of stores return them with the next record, and log them."""
    topology = Topology().add_source("source", "in").add_processor("p", Remember, "source").add_sink("out", "out", "p")
    topology.add_state_store(
        Stores.timestamped_key_value_store_with_headers_builder(
            Stores.persistent_timestamped_key_value_store_with_headers("kv"), S, S
        ),
        "p",
    )
    topology.add_state_store(
        Stores.timestamped_window_store_with_headers_builder(
            Stores.persistent_timestamped_window_store_with_headers("w", 1_000, 10), S, S
        ),
        "p",
    )
    topology.add_state_store(
        Stores.session_store_with_headers_builder(Stores.persistent_session_store_with_headers("s", 1_000), S, S), "p"
    )
    settings = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
    with TopologyTestDriver(topology, settings) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", "one", headers=H1, timestamp=1)
        topic.pipe_input("k", "two", headers=CAUSE, timestamp=2)
        records = driver.create_output_topic("out").read_records_to_list()
        assert [(record.key, record.value, record.headers) for record in records] == [
            ("kv", "one", H1),
            ("w", "one", H1),
            ("s", "one", H1),
        ]
        for store in ("kv", "w", "s"):
            logged = driver.create_output_topic(f"app-{store}-changelog", Serdes.bytes(), S).read_records_to_list()
            assert [(record.value, record.headers) for record in logged] == [("one", H1), ("two", CAUSE)]
