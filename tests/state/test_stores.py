"""Stores as users create them: all suppliers and builders of `Stores`, caching and logging options, tuning, and custom stores."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.config import StreamsConfig
from millrace.errors import ConfigError, SerializationError, TopologyError
from millrace.processor.api import Processor
from millrace.records import Headers, KeyValue, TopicPartition, ValueAndTimestamp, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import Stores, ValueTimestampHeaders
from millrace.state.rocksdb_options import store_options
from millrace.testing import TopologyTestDriver
from millrace.topology import Topology

S, L = Serdes.string(), Serdes.long()


class Keeps(Processor):
    """Puts each record into both stores."""

    def init(self, context):
        """Get the stores."""
        self.stores = context.get_state_store("s"), context.get_state_store("w")

    def process(self, record):
        """Put it."""
        self.stores[0].put(record.key, record.value)
        self.stores[1].put(record.key, record.value, record.timestamp)


HEADERS = Headers([("h", b"1")])


@pytest.mark.parametrize(
    ("supplier", "persistent", "value_format"),
    [
        (Stores.persistent_key_value_store("s"), True, "plain"),
        (Stores.persistent_timestamped_key_value_store("s"), True, "timestamped"),
        (Stores.persistent_timestamped_key_value_store_with_headers("s"), True, "headers"),
        (Stores.in_memory_key_value_store("s"), False, None),
        (Stores.lru_map("s", 5), False, None),
    ],
    ids=["plain", "timestamped", "headers", "memory", "lru"],
)
def test_every_key_value_supplier_makes_every_kind_of_store(make_task, supplier, persistent, value_format):
    """Anything that the supplier's layout cannot store is returned as unknown: -1, or no headers."""
    plain = Stores.key_value_store_builder(supplier, S, L)
    assert (plain.name, plain.persistent, plain.kind) == ("s", persistent, "key-value")
    store = make_task("plain").open(plain)
    store.put("k", 1)
    assert store.get("k") == 1

    store = make_task("timestamped").open(Stores.timestamped_key_value_store_builder(supplier, S, L))
    store.put("k", ValueAndTimestamp(1, 7))
    assert store.get("k") == ValueAndTimestamp(1, -1 if value_format == "plain" else 7)

    store = make_task("headers").open(Stores.timestamped_key_value_store_with_headers_builder(supplier, S, L))
    store.put("k", ValueTimestampHeaders(1, 7, HEADERS))
    kept = HEADERS if value_format in (None, "headers") else Headers()
    assert store.get("k") == ValueTimestampHeaders(1, -1 if value_format == "plain" else 7, kept)


def test_an_lru_map_forgets_what_was_used_least_recently(task):
    """A read counts as use; the eviction is logged before the record that caused it."""
    store = task.open(Stores.key_value_store_builder(Stores.lru_map("s", 2), S, S))
    for key in ("a", "b"):
        store.put(key, "v")
    store.get("a")
    store.put("c", "v")
    assert [key for key, _ in store.all()] == ["a", "c"]
    assert [(record.key, record.value) for record in task.log("s")][-2:] == [(b"b", None), (b"c", b"v")]


@pytest.mark.parametrize("cache", [0, 1_000_000])
def test_iterators_can_be_closed(cache):
    """As Java's must be: nothing follows then."""
    topology = Topology().add_source("from", "in", key_serde=S, value_serde=S)
    topology.add_processor("keeps", Keeps, "from")
    plain = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), S, S)
    windowed = Stores.window_store_builder(Stores.persistent_window_store("w", 10_000, 1_000), S, S)
    for builder in (plain, windowed):
        topology.add_state_store(builder.with_caching_enabled(), "keeps")
    with TopologyTestDriver(topology, {"application.id": "a", "statestore.cache.max.bytes": cache}) as driver:
        for key in "abc":
            driver.create_input_topic("in", S, S).pipe_input(key, "v", 0)
        store, windows = driver.get_key_value_store("s"), driver.get_window_store("w")
        for rows in (
            store.all(),
            store.range("a", "c"),
            windows.all(),
            windows.fetch("a", 0, 10),
            windows.fetch_all(0, 10),
        ):
            next(rows)
            rows.close()
            assert list(rows) == []


def test_pairs_are_put_in_bulk_and_counted(task):
    """None deletes in bulk too."""
    store = task.open(Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), S, S))
    store.put_all([("a", "1"), ("b", "2")])
    task.commit(store)
    assert store.approximate_num_entries() == 2
    store.put_all([("c", "3"), ("a", None), ("c", None)])
    assert list(store.all()) == [KeyValue("b", "2")]
    assert list(store.prefix_scan("b", S)) == [KeyValue("b", "2")]


@pytest.mark.parametrize(
    ("serde", "value", "wrong"),
    [
        (Serdes.short(), -2, 2**15),
        (Serdes.integer(), -2, 2**31),
        (Serdes.long(), -2, 2**63),
        (Serdes.float(), 0.5, 1e39),
        (Serdes.double(), 0.5, "0.5"),
        (Serdes.string(), "v", 1),
    ],
    ids=repr,
)
def test_timestamped_numbers_are_stored_as_timestamp_and_value(task, serde, value, wrong):
    """The row is the timestamp followed by the serde's bytes, which alone are logged; a value that does not fit is refused."""
    store = task.open(
        Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("s"), S, serde)
    )
    store.put("k", ValueAndTimestamp(value, 7))
    data = serde.serialize("t", value)
    assert store._bytes_store.get(b"k") == (7).to_bytes(8, "big") + data
    assert task.log("s")[0][:3] == (b"k", data, 7)
    assert store.get("k") == ValueAndTimestamp(value, 7)
    with pytest.raises(SerializationError, match=repr(serde).strip("()")):
        store.put("k", ValueAndTimestamp(wrong, 8))
    assert store.get("k") == ValueAndTimestamp(value, 7)


def test_a_row_of_another_length_is_refused(task):
    """If the serde was changed, the stored bytes are not read as another number."""
    store = task.open(Stores.timestamped_key_value_store_builder(Stores.in_memory_key_value_store("s"), S, L))
    store._bytes_store.put(b"k", bytes(8 + 4))
    with pytest.raises(SerializationError, match="exactly 8 bytes, but got 4 bytes"):
        store.get("k")


@pytest.mark.parametrize(
    "supplier",
    [
        Stores.persistent_window_store("w", 1_000, 100),
        Stores.persistent_timestamped_window_store("w", 1_000, 100),
        Stores.persistent_timestamped_window_store_with_headers("w", 1_000, 100),
        Stores.in_memory_window_store("w", 1_000, 100),
    ],
    ids=["plain", "timestamped", "headers", "memory"],
)
def test_every_window_supplier_makes_every_kind_of_store(make_task, supplier):
    """Read by point, by range, by keys and completely, in both directions."""
    store = make_task("plain").open(Stores.window_store_builder(supplier, S, L))
    store.put("a", 1, 0)
    store.put("b", 2, 100)
    store.put("a", 3, 200)
    a0, b1, a2 = (Windowed("a", Window(0, 100)), Windowed("b", Window(100, 200)), Windowed("a", Window(200, 300)))
    assert store.fetch("a", 0) == 1
    assert list(store.fetch("a", 0, 500)) == [(0, 1), (200, 3)]
    assert list(store.backward_fetch("a", 0, 500)) == [(200, 3), (0, 1)]
    assert sorted(store.fetch_keys("a", "b", 50, 150)) == [(b1, 2)]
    assert sorted(store.backward_fetch_keys(None, None, 0, 150)) == [(a0, 1), (b1, 2)]
    assert sorted(store.fetch_all(0, 100)) == [(a0, 1), (b1, 2)]
    assert list(store.backward_fetch_all(0, 100)) == list(store.fetch_all(0, 100))[::-1]
    assert sorted(store.all()) == [(a0, 1), (a2, 3), (b1, 2)]
    assert list(store.backward_all()) == list(store.all())[::-1]

    with_headers = Stores.timestamped_window_store_with_headers_builder(supplier, S, L)
    store = make_task("headers").open(with_headers)
    store.put("a", ValueTimestampHeaders(1, 7, HEADERS), 0)
    assert store.fetch("a", 0).value == 1
    store = make_task("timestamped").open(Stores.timestamped_window_store_builder(supplier, S, L))
    store.put("a", ValueAndTimestamp(1, 7), 0)
    assert store.fetch("a", 0).value == 1


@pytest.mark.parametrize(
    "supplier",
    [
        Stores.persistent_session_store("s", 1_000),
        Stores.persistent_session_store_with_headers("s", 1_000),
        Stores.in_memory_session_store("s", 1_000),
    ],
    ids=["plain", "headers", "memory"],
)
def test_sessions_are_put_found_and_removed(task, supplier):
    """By bounds, by key and by overlap, in both directions."""
    store = task.open(Stores.session_store_builder(supplier, S, L))
    early, late = Windowed("a", Window(0, 10)), Windowed("a", Window(50, 60))
    other = Windowed("b", Window(20, 30))
    for session, value in ((early, 1), (late, 2), (other, 3)):
        store.put(session, value)
    assert store.fetch_session("a", 0, 10) == 1
    assert list(store.find_sessions("a", 5, 20)) == [(early, 1)]
    assert list(store.fetch("a")) == [(early, 1), (late, 2)]
    assert list(store.backward_fetch("a")) == [(late, 2), (early, 1)]
    assert list(store.backward_find_sessions("a", 0, 100)) == [(late, 2), (early, 1)]
    assert sorted(store.fetch_keys("a", "b")) == [(early, 1), (late, 2), (other, 3)]
    assert list(store.backward_fetch_keys(None, None)) == list(store.fetch_keys(None, None))[::-1]
    assert sorted(store.find_sessions_of_keys("a", None, 15, 25)) == [(other, 3)]
    assert sorted(store.find_sessions_ended(10, 30)) == [(early, 1), (other, 3)]
    store.remove(early)
    assert store.fetch_session("a", 0, 10) is None


def test_versioned_stores_are_made_with_and_without_a_segment_interval(make_task):
    """The history retention alone is enough."""
    for name, interval in (("default", None), ("given", 50)):
        supplier = Stores.persistent_versioned_key_value_store("v", 1_000, interval)
        store = make_task(name).open(Stores.versioned_key_value_store_builder(supplier, S, S))
        assert store.put("k", "a", 10) == -1
        assert store.put("k", "b", 30) == -1
        assert store.get("k", 20).value == "a"
        assert store.get("k").timestamp == 30
        assert store.delete("k", 40).value == "b"
    with pytest.raises(TopologyError, match="cannot be cached"):
        Stores.versioned_key_value_store_builder(supplier, S, S).with_caching_enabled()


def test_builders_switch_cache_and_changelog():
    """The options are remembered, including the changelog's settings; stores that retain duplicates are never cached."""
    builder = Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), S, S)
    assert (builder.caching_enabled, builder.logging_enabled) == (False, True)
    builder.with_caching_enabled().with_logging_enabled({"retention.ms": "5"})
    assert (builder.caching_enabled, builder.log_config) == (True, {"retention.ms": "5"})
    builder.with_caching_disabled().with_logging_disabled()
    assert (builder.caching_enabled, builder.logging_enabled, builder.log_config) == (False, False, {})
    duplicates = Stores.window_store_builder(Stores.persistent_window_store("w", 100, 10, True), S, S)
    assert duplicates.with_caching_enabled().caching_enabled is False


class Tuning:
    """Records which stores it was asked to tune and to close."""

    def __init__(self):
        self.calls = []

    def set_config(self, store_name, options, config):
        options.options.set_write_buffer_size(1 << 20)
        self.calls.append(("set", store_name, config.application_id))

    def close(self, store_name, options):
        self.calls.append(("close", store_name))


def test_a_config_setter_tunes_every_store_and_is_called_when_it_closes(make_task):
    """It is called before the database is opened, and again after it has been closed."""
    setter = Tuning()
    task = make_task(settings={"rocksdb.config.setter": setter})
    store = task.open(Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), S, S))
    assert setter.calls == [("set", "s", "app")]
    store.close()
    assert setter.calls[-1] == ("close", "s")
    with pytest.raises(ConfigError, match=r"rocksdb\.config\.setter"):
        make_task("wrong", settings={"rocksdb.config.setter": "nowhere:nothing"}).open(
            Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), S, S)
        )


def test_all_stores_of_a_process_share_one_memory_budget():
    """Block cache and write buffers are the same objects for every store, as large as the setting says."""
    config = StreamsConfig.of({"application.id": "app"})
    one, other = store_options("one", config, None), store_options("other", config, None)
    assert one.block_cache is other.block_cache
    assert one.write_buffer_manager is other.write_buffer_manager
    smaller = StreamsConfig.of({"application.id": "app", "rocksdb.memory.max.bytes": 1 << 20})
    assert store_options("one", smaller, None).block_cache is not one.block_cache
    assert config.rocksdb_memory_max_bytes == 256 << 20


class Tally:
    """A custom store: counts per key in a dict, restored from a changelog and logged to it."""

    persistent = False

    def __init__(self, name):
        self.name = name
        self.counts = {}
        self.committed = {}

    def init(self, context):
        partition = context.changelog_partition(self.name)
        self.log = None if partition is None else context.send_change(partition)
        self.record = context.record
        self.opened = True

    def add(self, key):
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.log is not None:
            self.log(key.encode(), str(self.counts[key]).encode(), self.record.timestamp, Headers())
        return self.counts[key]

    def flush(self):
        """Do nothing: nothing is buffered."""

    def commit(self, offsets: Mapping[TopicPartition, int]):
        self.committed.update(offsets)

    def committed_offset(self, partition):
        return self.committed.get(partition)

    def restore(self, records):
        self.counts.update((record.key.decode(), int(record.value)) for record in records)

    def uncommitted_bytes(self):
        return 0

    def is_open(self):
        return self.opened

    def close(self):
        self.opened = False


class TallyBuilder:
    """Makes tallies."""

    kind = "key-value"
    retention_ms = None
    retain_duplicates = False
    persistent = False
    value_format = "plain"
    caching_enabled = False
    logging_enabled = True
    log_config: Mapping[str, str] = {}

    def __init__(self, name):
        self.name = name

    def build(self):
        return Tally(self.name)


def test_a_store_of_ones_own_is_opened_logged_and_committed():
    """It implements `StateStore`; the task gives it its changelog, and the offsets of its records."""
    from millrace.processor import Processor

    class Count(Processor):
        def process(self, record):
            self.context.forward(record.with_value(str(self.context.get_state_store("tally").add(record.key))))

    topology = Topology().add_source("s", "in").add_processor("p", Count, "s").add_sink("out", "out", "p")
    topology.add_state_store(TallyBuilder("tally"), "p")
    settings = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
    with TopologyTestDriver(topology, settings) as driver:
        driver.create_input_topic("in").pipe_list([("k", "x"), ("k", "y")])
        assert driver.create_output_topic("out").read_values_to_list() == ["1", "2"]
        changes = driver.create_output_topic("app-tally-changelog").read_key_values_to_list()
        assert changes == [("k", "1"), ("k", "2")]
        store = driver.get_state_store("tally")
        assert store.committed == {TopicPartition("app-tally-changelog", 0): 1}
    assert not store.is_open()
