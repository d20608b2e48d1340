"""Versioned stores: against a list of versions, and in Java's bytes."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.records import TopicPartition
from millrace.serdes.primitives import StringSerde
from millrace.state import Stores
from millrace.state.versioned import PUT_RETURN_CODE_NOT_PUT, PUT_RETURN_CODE_VALID_TO_UNDEFINED, VersionedRecord
from millrace.state.versioned_physical import default_segment_interval_ms
from millrace.state.versioned_rows import VersionRow

S = StringSerde()
CHANGELOG = TopicPartition("app-v-changelog", 0)
RETENTION, SEGMENT = 40, 10


def builder(retention=RETENTION, segment=SEGMENT):
    """Return the builder under test."""
    supplier = Stores.persistent_versioned_key_value_store("v", retention, segment)
    return Stores.versioned_key_value_store_builder(supplier, S, S)


def test_rows_on_disk_are_those_java_wrote(task):
    """The puts of the recorded Java run leave the same rows: latest, older versions, and a lone tombstone."""
    store = task.open(builder(3_600_000, None))
    for key, value, timestamp in [
        ("a", "v1", 10_000),
        ("a", "v3", 30_000),
        ("a", "v2", 20_000),
        ("a", None, 40_000),
        ("b", None, 41_000),
        ("c", "keep", 42_000),
    ]:
        store.put(key, value, timestamp)
    task.commit(store)
    assert {key.hex(): value.hex() for key, value in store._physical.scan(None, None)} == {
        "000000000000000061": "0000000000009c4000000000000027100000000000007530000000020000000000004e20"
        "00000002000000000000271000000002763176327633",
        "000000000000000062": "000000000000a028000000000000a028000000000000a028ffffffff",
        "ffffffffffffffff63": "000000000000a4106b656570",
    }
    assert [(r.key, r.value, r.timestamp, r.headers) for r in task.log("v")][:4] == [
        (b"a", b"v1", 10_000, ()),
        (b"a", b"v3", 30_000, ()),
        (b"a", b"v2", 20_000, ()),
        (b"a", None, 40_000, ()),
    ]


def test_put_tells_where_the_version_ends(task):
    """A put returns the next version's timestamp, -1 for the latest, and Long.MIN_VALUE when it came too late."""
    store = task.open(builder())
    assert store.put("k", "b", 20) == PUT_RETURN_CODE_VALID_TO_UNDEFINED
    assert store.put("k", "a", 5) == 20
    assert store.put("k", "c", 60) == PUT_RETURN_CODE_VALID_TO_UNDEFINED
    assert store.put("k", "late", 19) == PUT_RETURN_CODE_NOT_PUT
    assert task.dropped == 1
    assert store.delete("k", 70) == VersionedRecord("c", 60)
    assert store.get("k") is None
    assert list(store.get_versions("k", 50, 80)) == [VersionedRecord("c", 60, 70), VersionedRecord("b", 20, 60)]


def test_segment_intervals_are_javas():
    """The default interval grows with the retention, in Java's four steps."""
    assert [default_segment_interval_ms(ms) for ms in (200, 60_000, 300_000, 3_600_000, 86_400_000)] == [
        2_000,
        20_000,
        60_000,
        300_000,
        3_600_000,
    ]


VERSIONS = st.lists(
    st.tuples(st.integers(0, 1000), st.none() | st.binary(max_size=4)), min_size=1, max_size=6, unique_by=lambda v: v[0]
)


@given(VERSIONS, st.integers(1, 100))
def test_row_codec_round_trips(versions, length):
    """A row read is the row written."""
    ordered = sorted(versions, reverse=True)
    row = VersionRow(ordered[0][0] + length, ordered)
    assert VersionRow.decode(row.encode()) == row


class Versions:
    """The model: every version of a key by timestamp, cut off at the history retention."""

    def __init__(self):
        self.by_key: dict[str, dict[int, str | None]] = {}
        self.stream_time = -1

    def put(self, key, value, timestamp):
        if timestamp < self.stream_time - RETENTION:
            return PUT_RETURN_CODE_NOT_PUT
        self.stream_time = max(self.stream_time, timestamp)
        versions = self.by_key.setdefault(key, {})
        versions[timestamp] = value
        later = [at for at in versions if at > timestamp]
        return min(later, default=PUT_RETURN_CODE_VALID_TO_UNDEFINED)

    def get(self, key, timestamp=None):
        versions = self.by_key.get(key, {})
        at = max((t for t in versions if timestamp is None or t <= timestamp), default=None)
        if at is None or versions[at] is None:
            return None
        is_latest = at == max(versions)
        if timestamp is not None and not is_latest and timestamp < self.stream_time - RETENTION:
            return None
        return VersionedRecord(versions[at], at)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 6 + ["commit", "crash"]),
        st.sampled_from("ab"),
        st.none() | st.text("xyz", min_size=1, max_size=3),
        st.integers(-60, 25),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
def test_store_knows_every_version_within_retention(task_class, tmp_path_factory, steps):
    """Whatever the order of puts and deletes, and through crashes: each time within retention has the right version."""
    owner = task_class(tmp_path_factory.mktemp("versioned"))
    store, model, time, committed_time = owner.open(builder()), Versions(), 50, -1
    for kind, key, value, step in steps:
        if kind == "put":
            timestamp = max(time + step, 0)
            time = max(time, timestamp)
            expected = model.put(key, value, timestamp)
            assert store.put(key, value, timestamp) == expected
        elif kind == "commit":
            owner.commit(store)
            committed_time = model.stream_time
        else:
            store.close()
            store = owner.open(builder())
            done = store.committed_offset(CHANGELOG)
            tail = owner.log("v")[0 if done is None else done + 1 :]
            # The stream time is not stored (nor is it in Java), so late writes that were dropped would now be taken.
            store._physical.observed_stream_time = committed_time
            if tail:
                store.restore(tail)
                committed_time = model.stream_time
            assert store._physical.observed_stream_time == model.stream_time
        for name in "ab":
            assert store.get(name) == model.get(name)
            for at in range(max(model.stream_time - RETENTION, 0), model.stream_time + 2, 3 if kind == "put" else 1):
                assert store.get(name, at) == model.get(name, at), (name, at)
    owner.close()
