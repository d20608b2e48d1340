"""Versioned stores: against a list of versions, and in Java's bytes."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace.records import TopicPartition
from millrace.serdes.primitives import StringSerde
from millrace.state import Stores
from millrace.state.versioned import PUT_RETURN_CODE_NOT_PUT, PUT_RETURN_CODE_VALID_TO_UNDEFINED, VersionedRecord
from millrace.state.versioned_bytes_store import VersionRow, default_segment_interval_ms

S = StringSerde()
CHANGELOG = TopicPartition("app-v-changelog", 0)
RETENTION, SEGMENT = 40, 10


def builder(retention=RETENTION, segment=SEGMENT):
    """Return the builder under test."""
    supplier = Stores.persistent_versioned_key_value_store("v", retention, segment)
    return Stores.versioned_key_value_store_builder(supplier, S, S)


def test_rows_on_disk_are_those_java_wrote(task):
    """The puts of the recorded Java run leave the same rows: the latest version, older versions, and a lone tombstone."""
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
    assert {key.hex(): value.hex() for key, value in store._bytes_store.scan(None, None)} == {
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
    """A put returns the next version's timestamp, -1 for the latest, and Long.MIN_VALUE if it was too late."""
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
    """A row that is read equals the row that was written."""
    ordered = sorted(versions, reverse=True)
    row = VersionRow(ordered[0][0] + length, ordered)
    assert VersionRow.decode(row.encode()) == row


class Versions:
    """The model: the latest value of each key, and spans of time in which older versions were valid.

    It forgets what Kafka Streams 4.3.1 forgets; running its RocksDBVersionedStore gave these answers:

    * Deleting the latest version at its own timestamp leaves no trace if nothing ends there. After `x` at 50 and a delete at 50,
      a put at 49 returns -1 and is the latest version.
    * Restoring leaves out what ends in a segment that will have expired by the end of the batch, so a tombstone there does not
      end an older version that comes after it. With a delete at 29, `x` at 28 and any put at 70, `x` is gone until a restore
      brings it back as the latest version.
    """

    def __init__(self):
        self.latest: dict[str, tuple[int, str]] = {}
        self.spans: dict[str, dict[int, tuple[int, str | None]]] = {}
        self.stream_time = -1
        self.log: list[tuple[str, str | None, int]] = []
        self.commit()

    def commit(self):
        """Keep the present state for after a crash."""
        self.committed = (dict(self.latest), {key: dict(spans) for key, spans in self.spans.items()}, self.stream_time)
        self.log.clear()

    def crash(self):
        """Return to the commit and restore what was put since then."""
        (self.latest, self.spans, self.stream_time), batch = self.committed, list(self.log)
        end = max([self.stream_time, *(timestamp for _, _, timestamp in batch)])
        for key, value, timestamp in batch:
            self._write(key, value, timestamp, end)
        self.commit()

    def put(self, key, value, timestamp):
        """Write a version as it arrives; return where its validity ends."""
        self.log.append((key, value, timestamp))
        return self._write(key, value, timestamp, timestamp)

    def _write(self, key, value, timestamp, end):
        if timestamp < self.stream_time - RETENTION:
            return PUT_RETURN_CODE_NOT_PUT
        self.stream_time = max(self.stream_time, timestamp)
        oldest_live = (max(self.stream_time, end) - RETENTION) // SEGMENT
        self.spans.setdefault(key, {})
        self._expire(oldest_live)
        valid_to = self._place(key, value, timestamp)
        self._expire(oldest_live)
        return valid_to

    def _expire(self, oldest_live):
        for key, spans in self.spans.items():
            self.spans[key] = {at: span for at, span in spans.items() if span[0] // SEGMENT >= oldest_live}

    def _place(self, key, value, timestamp):
        latest_at, latest_value = self.latest.get(key, (None, None))
        spans = self.spans[key]
        if latest_at is not None and timestamp >= latest_at:
            if timestamp > latest_at:
                spans[latest_at] = (timestamp, latest_value)
            return self._put_latest(key, value, timestamp)
        for start, (to, old) in list(spans.items()):
            if start <= timestamp < to:
                spans[start] = (timestamp, old)
                spans[timestamp] = (to, value)
                return to
        later = min((start for start in spans if start > timestamp), default=None)
        if later is None and latest_at is None:
            if value is None:
                spans.setdefault(timestamp, (timestamp, None))
            return self._put_latest(key, value, timestamp)
        valid_to = latest_at if later is None else later
        spans[timestamp] = (valid_to, value)
        return valid_to

    def _put_latest(self, key, value, timestamp):
        self.latest.pop(key, None)
        if value is not None:
            self.latest[key] = (timestamp, value)
        return PUT_RETURN_CODE_VALID_TO_UNDEFINED

    def get(self, key, timestamp=None):
        latest = self.latest.get(key)
        if latest is not None and (timestamp is None or latest[0] <= timestamp):
            return VersionedRecord(latest[1], latest[0])
        if timestamp is None or timestamp < self.stream_time - RETENTION:
            return None
        for start, (to, value) in self.spans.get(key, {}).items():
            if start <= timestamp < to:
                return None if value is None else VersionedRecord(value, start)
        return None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 6 + ["commit", "crash"]),
        st.sampled_from("ab"),
        st.none() | st.text("xyz", min_size=1, max_size=3),
        st.integers(-60, 25),
    ),
    max_size=40,
)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(STEPS)
@example([("put", "a", "x", 0), ("put", "a", None, 0), ("put", "a", None, -1)])
@example([("put", "b", None, -21), ("put", "b", "x", -22), ("put", "a", None, 20), ("crash", "a", None, 0)])
def test_store_knows_every_version_within_retention(task_class, tmp_path_factory, steps):
    """Whatever the order of puts and deletes, and through crashes, the store has the versions that Java's would have."""
    owner = task_class(tmp_path_factory.mktemp("versioned"))
    store, model, time = owner.open(builder()), Versions(), 50
    for kind, key, value, step in steps:
        if kind == "put":
            timestamp = max(time + step, 0)
            time = max(time, timestamp)
            expected = model.put(key, value, timestamp)
            assert store.put(key, value, timestamp) == expected
        elif kind == "commit":
            owner.commit(store)
            model.commit()
        else:
            store.close()
            store = owner.open(builder())
            done = store.committed_offset(CHANGELOG)
            tail = owner.log("v")[0 if done is None else done + 1 :]
            # The stream time is not stored (nor is it in Java), so late writes that were dropped would now be taken.
            store._bytes_store.observed_stream_time = model.committed[2]
            model.crash()
            if tail:
                store.restore(tail)
            assert store._bytes_store.observed_stream_time == model.stream_time
        for name in "ab":
            assert store.get(name) == model.get(name)
            for at in range(max(model.stream_time - RETENTION, 0), model.stream_time + 2, 3 if kind == "put" else 1):
                assert store.get(name, at) == model.get(name, at), (name, at)
    owner.close()
