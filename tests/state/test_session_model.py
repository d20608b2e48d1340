"""Session stores of every layout against a dict, cached and not, through expiry, commits and restarts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.records import Window, Windowed
from millrace.serdes.primitives import ByteArraySerde, StringSerde
from millrace.state import Stores
from millrace.state.keys import SessionKey
from millrace.state.session_bytes_store import RocksSessionStore, RocksTimeOrderedSessionStore
from millrace.state.suppliers import SessionSupplier
from millrace.state.value_formats import PLAIN, SESSION_HEADERS

RETENTION, SEGMENT = 50, 15
KEYS = st.binary(max_size=3).map(lambda raw: bytes(b % 4 * 85 for b in raw))

SUPPLIERS = {
    "key-order": SessionSupplier("s", RETENTION, PLAIN, RocksSessionStore, SEGMENT),
    "headers": SessionSupplier("s", RETENTION, SESSION_HEADERS, RocksSessionStore, SEGMENT),
    "time-order": SessionSupplier("s", RETENTION, PLAIN, RocksTimeOrderedSessionStore, SEGMENT),
    "memory": Stores.in_memory_session_store("s", RETENTION),
}

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 8 + ["remove", "commit", "flush", "reopen"]),
        KEYS,
        st.text("xyz", max_size=3),
        st.integers(-70, 12),
        st.integers(0, 20),
    ),
    max_size=30,
)


class Opaque(StringSerde):
    """A string serde whose values the cache must not share."""

    shareable = False


@pytest.mark.parametrize("caching", [False, "large", "tiny"])
@pytest.mark.parametrize("kind", SUPPLIERS)
def test_session_store_behaves_as_a_dict_of_sessions(task_class, tmp_path_factory, kind, caching):
    """Puts, removals, expiry, commits and restarts leave exactly the live sessions, in the layout's order, in both directions."""

    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(STEPS, st.none() | KEYS, st.none() | KEYS, st.integers(-5, 80), st.integers(-5, 80), st.booleans())
    def run(steps, key_from, key_to, earliest_end, latest_start, shareable):
        task = task_class(tmp_path_factory.mktemp("s"), cache_bytes=250 if caching == "tiny" else 10**6)
        serde = StringSerde() if shareable else Opaque()
        builder = Stores.session_store_builder(SUPPLIERS[kind], ByteArraySerde(), serde)
        if caching:
            builder.with_caching_enabled()
        store = task.open(builder)
        model: dict[SessionKey, str] = {}
        clock, time = 40, -1
        for step, key, value, change, length in steps:
            if step == "put":
                end = max(clock + change, 0)
                clock = max(clock, end)
                time = max(time, end)
                session = SessionKey(key, max(end - length, 0), end)
                task.at(end)
                store.put(Windowed(key, Window(session.start, end)), value)
                model[session] = value
            elif step == "remove" and model:
                session = sorted(model)[length % len(model)]
                store.remove(Windowed(session.key, Window(session.start, session.end)))
                del model[session]
            elif step == "flush":
                store.flush()
            elif step == "commit":
                task.commit(store)
            elif step == "reopen" and builder.persistent:
                task.commit(store)
                store.close()
                store = task.open(builder)
                store._bytes_store.observed_stream_time = time
        live = {session: value for session, value in model.items() if session.end > time - RETENTION}
        order = store._bytes_store.order

        def flat(rows):
            found = [(SessionKey(w.key, *w.window), value) for w, value in rows]
            return [(session, value) for session, value in found if session.end > time - RETENTION]

        def expected(lower, upper):
            return {
                session: value
                for session, value in live.items()
                if session.end >= earliest_end
                and session.start <= latest_start
                and (lower is None or session.key >= lower)
                and (upper is None or session.key <= upper)
                and not (lower is not None and upper is not None and lower > upper)
            }

        found = flat(store.find_sessions_of_keys(key_from, key_to, earliest_end, latest_start))
        assert dict(found) == expected(key_from, key_to)
        assert len(found) == len(dict(found))
        back = flat(store.backward_find_sessions_of_keys(key_from, key_to, earliest_end, latest_start))
        assert back == found[::-1]
        if key_from is None or key_from != key_to:
            assert found == sorted(found, key=lambda row: order(row[0]))
        for key in {session.key for session in model} | {b"\x00"}:
            found = flat(store.find_sessions(key, earliest_end, latest_start))
            assert found == sorted(expected(key, key).items(), key=lambda row: (row[0].end, row[0].start))
            assert flat(store.backward_find_sessions(key, earliest_end, latest_start)) == found[::-1]
            assert dict(flat(store.fetch(key))) == {s: v for s, v in live.items() if s.key == key}
        ended = flat(store.find_sessions_ended(earliest_end, latest_start))
        assert dict(ended) == {s: v for s, v in live.items() if earliest_end <= s.end <= latest_start}
        assert [session.end for session, _ in ended] == sorted(session.end for session, _ in ended)
        for session, value in live.items():
            assert store.fetch_session(*session) == value
        task.close()

    run()


def test_restored_store_equals_the_logged_one(make_task):
    """A store restored from its changelog has the sessions that were put."""
    for kind, supplier in SUPPLIERS.items():
        builder = Stores.session_store_builder(supplier, StringSerde(), StringSerde())
        source, target = make_task(f"{kind}-a"), make_task(f"{kind}-b")
        store = source.open(builder)
        for start, end in ((1, 5), (3, 9), (20, 31)):
            store.put(Windowed("k", Window(start, end)), f"{start}-{end}")
        store.remove(Windowed("k", Window(3, 9)))
        restored = target.open(builder)
        restored.restore(source.log("s"))
        assert list(restored.fetch("k")) == list(store.fetch("k"))
        assert [value for _, value in restored.fetch("k")] == ["1-5", "20-31"]


def test_late_session_is_dropped_and_counted(task):
    """A session whose segment has expired is not stored but counted as dropped and, as in Java, still logged."""
    store = task.open(Stores.session_store_builder(SUPPLIERS["key-order"], StringSerde(), StringSerde()))
    store.put(Windowed("k", Window(190, 200)), "new")
    store.put(Windowed("k", Window(90, 100)), "late")
    assert task.dropped == 1
    assert [value for _, value in store.fetch("k")] == ["new"]
    assert len(task.log("s")) == 2
