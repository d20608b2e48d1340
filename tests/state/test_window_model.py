"""Window stores of every layout against a dict, cached and not, through expiry, commits and restarts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.records import TopicPartition, ValueAndTimestamp, Window
from millrace.serdes.primitives import ByteArraySerde, StringSerde
from millrace.state import Stores
from millrace.state.suppliers import WindowSupplier
from millrace.state.value_formats import HEADERS, PLAIN, TIME_ORDERED_TIMESTAMPED, TIMESTAMPED
from millrace.state.window_bytes_store import RocksIndexedWindowStore, RocksTimeOrderedWindowStore, RocksWindowStore

RETENTION, SIZE, SEGMENT = 50, 10, 15
MINUTE = 60_000
CHANGELOG = TopicPartition("app-w-changelog", 0)
KEYS = st.binary(max_size=3).map(lambda raw: bytes(b % 4 * 85 for b in raw))
BOUND = st.none() | KEYS


class Opaque(StringSerde):
    """A string serde whose values the cache must not share."""

    shareable = False


def persistent(layout, value_format):
    """Return a supplier with small segments."""
    return WindowSupplier("w", RETENTION, SIZE, False, value_format, layout, SEGMENT)


SUPPLIERS = {
    "key-order": persistent(RocksWindowStore, PLAIN),
    "timestamped": persistent(RocksWindowStore, TIMESTAMPED),
    "headers": persistent(RocksWindowStore, HEADERS),
    "time-order": persistent(RocksTimeOrderedWindowStore, TIME_ORDERED_TIMESTAMPED),
    "indexed": persistent(RocksIndexedWindowStore, TIME_ORDERED_TIMESTAMPED),
    "memory": Stores.in_memory_window_store("w", RETENTION, SIZE),
}

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 8 + ["commit", "flush", "reopen"]),
        KEYS,
        st.none() | st.text("xyz", max_size=3),
        st.integers(-70, 12),
    ),
    max_size=30,
)


class Driver:
    """A store and its model side by side."""

    def __init__(self, task, supplier, *, caching, serde):
        self.task = task
        make = Stores.window_store_builder
        if supplier.value_format is not PLAIN and supplier.value_format is not None:
            make = Stores.timestamped_window_store_builder
        self.timestamped = make is Stores.timestamped_window_store_builder
        self.builder = make(supplier, ByteArraySerde(), serde)
        if caching:
            self.builder.with_caching_enabled()
        self.store = task.open(self.builder)
        self.model: dict[tuple[bytes, int], object] = {}
        self.committed: dict[tuple[bytes, int], object] = {}
        self.time = self.committed_time = -1

    def put(self, key, value, start):
        self.time = max(self.time, start)
        self.task.at(start)
        stored = value
        if value is not None and self.timestamped:
            stored = ValueAndTimestamp(value, start + 3)
        self.store.put(key, stored, start)
        if stored is None:
            self.model.pop((key, start), None)
        elif start > self.time - RETENTION:
            self.model[key, start] = stored

    def live(self, rows):
        """Leave out what has expired: below the cache it is gone, while the cache may still return it, as in Java."""
        return [row for row in rows if row[0][1] > self.time - RETENTION]

    def expected(self, key_from, key_to, time_from, time_to):
        return {
            (key, start): value
            for (key, start), value in self.model.items()
            if start > self.time - RETENTION
            and time_from <= start <= time_to
            and (key_from is None or key >= key_from)
            and (key_to is None or key <= key_to)
        }

    def check(self, key_from, key_to, time_from, time_to):
        store, order = self.store, self.store._bytes_store.order
        wanted = self.expected(key_from, key_to, time_from, time_to)
        if key_from is not None and key_to is not None and key_from > key_to:
            wanted = {}

        def flat(rows):
            found = [((w.key, w.window.start), value) for w, value in rows]
            return self.live(found)

        forward = flat(store.fetch_keys(key_from, key_to, time_from, time_to))
        assert dict(forward) == wanted
        assert len(forward) == len(wanted)
        of_keys = key_from is not None or key_to is not None
        by_order = sorted(forward, key=lambda row: order(*row[0], of_keys=of_keys))
        if not (key_from is not None and key_from == key_to):
            assert forward == by_order
        assert flat(store.backward_fetch_keys(key_from, key_to, time_from, time_to)) == forward[::-1]
        for key in {key for key, _ in self.model} | {b"\x00"}:
            single = {start: value for (_, start), value in self.expected(key, key, time_from, time_to).items()}
            found = [row for row in store.fetch(key, time_from, time_to) if row[0] > self.time - RETENTION]
            assert found == sorted(single.items())
            back = [row for row in store.backward_fetch(key, time_from, time_to) if row[0] > self.time - RETENTION]
            assert back == found[::-1]
            for start in range(max(self.time - RETENTION + 1, 0), self.time + 1, 7):
                assert store.fetch(key, start) == self.model.get((key, start))
        everything = flat(store.all())
        assert dict(everything) == self.expected(None, None, 0, 10**9)
        assert everything == flat(store.fetch_all(0, 10**9))
        assert flat(store.backward_all()) == everything[::-1]


@pytest.mark.parametrize("caching", [False, "large", "tiny"])
@pytest.mark.parametrize("kind", SUPPLIERS)
def test_window_store_behaves_as_a_dict_of_windows(task_class, tmp_path_factory, kind, caching):
    """Puts, deletes, expiry, commits and restarts leave exactly the live windows, in the layout's order, in both directions."""

    @settings(max_examples=12, suppress_health_check=list(HealthCheck))
    @given(STEPS, BOUND, BOUND, st.integers(-5, 80), st.integers(0, 40), st.booleans())
    def run(steps, key_from, key_to, time_from, span, shareable):
        task = task_class(tmp_path_factory.mktemp("w"), cache_bytes=250 if caching == "tiny" else 10**6)
        serde = StringSerde() if shareable else Opaque()
        driver = Driver(task, SUPPLIERS[kind], caching=bool(caching), serde=serde)
        clock = 40
        for step, key, value, change in steps:
            if step == "put":
                start = max(clock + change, 0)
                clock = max(clock, start)
                driver.put(key, value, start)
            elif step == "flush":
                driver.store.flush()
            elif step == "commit":
                task.commit(driver.store)
                driver.committed, driver.committed_time = dict(driver.model), driver.time
            elif driver.builder.persistent:
                task.commit(driver.store)
                driver.store.close()
                driver.store = task.open(driver.builder)
                driver.store._bytes_store.observed_stream_time = driver.time
        driver.check(key_from, key_to, time_from, time_from + span)
        driver.check(key_from, key_from, 0, 10**9)
        task.close()

    run()


def test_restored_store_equals_the_logged_one(make_task):
    """A store restored from its changelog has the windows, values and timestamps that were put."""
    for kind, supplier in SUPPLIERS.items():
        source = make_task(f"{kind}-a")
        driver = Driver(source, supplier, caching=False, serde=StringSerde())
        for start in (5, 10, 30, 31):
            for key in (b"a", b"aa", b"b"):
                driver.put(key, f"{key!r}@{start}", start)
        driver.put(b"a", None, 10)
        target = make_task(f"{kind}-b")
        restored = target.open(driver.builder)
        restored.restore(source.log("w"))
        assert list(restored.all()) == list(driver.store.all())
        assert restored.committed_offset(CHANGELOG) == len(source.log("w")) - 1


@pytest.mark.parametrize("kind", ["rocksdb", "memory"])
def test_duplicates_are_kept_in_order_of_puts(task, kind):
    """A store that retains duplicates returns all values of a key and time, oldest put first, numbered from 1."""
    make = Stores.persistent_window_store if kind == "rocksdb" else Stores.in_memory_window_store
    store = task.open(Stores.window_store_builder(make("w", 100, 10, True), StringSerde(), StringSerde()))
    for value in ("x", "y", "z"):
        store.put("k", value, 7)
    store.put("k2", "other", 7)
    assert list(store.fetch("k", 0, 50)) == [(7, "x"), (7, "y"), (7, "z")]
    assert list(store.backward_fetch("k", 0, 50)) == [(7, "z"), (7, "y"), (7, "x")]
    assert [row.key[-4:] for row in task.log("w")] == [n.to_bytes(4, "big") for n in (1, 2, 3, 4)]
    assert [windowed.window for windowed, _ in store.all()] == [Window(7, 17)] * 4


@pytest.mark.parametrize("kind", ["rocksdb", "memory"])
@pytest.mark.parametrize("crashes", [0, 3])
def test_duplicates_of_a_store_that_is_opened_again_take_no_ones_place(task, kind, crashes):
    """A number is used once: as many puts after the store was opened again, for the same key and time, replace nothing."""
    make = Stores.persistent_window_store if kind == "rocksdb" else Stores.in_memory_window_store
    builder = Stores.window_store_builder(make("w", 100, 10, True), StringSerde(), StringSerde())
    store = task.open(builder)
    for value in ("a", "b"):
        store.put("k", value, 7)
    task.commit(store)
    expected = [(7, "a"), (7, "b")]
    for attempt in range(crashes):
        store.close()
        store = task.open(builder)
        reached = store.committed_offset(CHANGELOG)
        store.restore(task.log("w")[0 if reached is None else reached + 1 :])
        store.put("k", f"try {attempt}", 7)  # logged, but the store was not committed
        expected.append((7, f"try {attempt}"))
    store.close()
    store = task.open(builder)
    reached = store.committed_offset(CHANGELOG)
    store.restore(task.log("w")[0 if reached is None else reached + 1 :])
    for value in ("c", "d"):
        store.put("k", value, 7)
    expected += [(7, "c"), (7, "d")]
    assert list(store.fetch("k", 0, 50)) == expected
    restored = task.open(Stores.window_store_builder(make("other", 100, 10, True), StringSerde(), StringSerde()))
    restored.restore(task.log("w"))
    assert list(restored.fetch("k", 0, 50)) == expected


def test_duplicates_of_a_store_without_a_changelog_take_no_ones_place_either(task):
    """What is on the disk says which numbers are taken, of keys and times of any segment."""
    supplier = Stores.persistent_window_store("w", 10 * MINUTE, 10, True)
    builder = Stores.window_store_builder(supplier, StringSerde(), StringSerde()).with_logging_disabled()
    store = task.open(builder)
    for key, start in (("k", 7), ("k", 7), ("z", 9 * MINUTE), ("k", 7)):
        store.put(key, f"{key} before", start)
    task.commit(store)
    store.close()
    store = task.open(builder)
    for _ in range(3):
        store.put("k", "k after", 7)
    assert [value for _, value in store.fetch("k", 0, 50)] == ["k before"] * 3 + ["k after"] * 3


def test_late_window_is_dropped_and_counted(task):
    """A window whose segment has expired is not stored but counted as dropped and, as in Java, still logged."""
    store = task.open(Stores.window_store_builder(SUPPLIERS["key-order"], StringSerde(), StringSerde()))
    store.put("k", "new", 200)
    store.put("k", "late", 100)
    assert task.dropped == 1
    assert store.fetch("k", 100) is None
    assert len(task.log("w")) == 2


def test_expired_segments_leave_the_disk(task):
    """Segment directories are deleted once they are older than the retention, by stream time."""
    store = task.open(Stores.window_store_builder(SUPPLIERS["key-order"], StringSerde(), StringSerde()))
    for start in (0, 20, 40, 200):
        store.put("k", "v", start)
        task.commit(store)
    names = sorted(path.name for path in (task.state_dir / "w").iterdir())
    assert names == ["w.195"]


def test_segment_directories_of_older_versions_are_renamed(task):
    """Directories named with a date or a colon, as Kafka Streams 0.x did, are adopted."""
    builder = Stores.window_store_builder(
        Stores.persistent_window_store("w", 120_000, 10), StringSerde(), StringSerde()
    )
    store = task.open(builder)
    store.put("k", "v", 60_000)
    task.commit(store)
    directory = task.state_dir / "w"
    for old_name in ("w:60000", "w-197001010001"):
        store.close()
        (directory / "w.60000").rename(directory / old_name)
        store = task.open(builder)
        assert store.fetch("k", 60_000) == "v"
        assert [path.name for path in directory.iterdir()] == ["w.60000"]
