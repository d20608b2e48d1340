"""What stores keep on disk besides their rows, and when they delete it."""

from __future__ import annotations

import pickle
import shutil

import pytest
from rocksdict import Options, Rdict

from millrace.errors import TaskCorruptedError
from millrace.records import ValueAndTimestamp, Window, Windowed
from millrace.serdes.primitives import StringSerde
from millrace.state import Stores
from millrace.state.keys import decode_window_key
from millrace.state.suppliers import WindowSupplier

S = StringSerde()
RETENTION = 300
SEGMENT = 100


def windows(name="w", *, retain_duplicates=False, retention=RETENTION, segment=SEGMENT):
    """Return a builder of a window store with small segments."""
    supplier = WindowSupplier(name, retention, 10, retain_duplicates, segment_interval_ms=segment)
    return Stores.window_store_builder(supplier, S, S)


def segments_of(task, name="w"):
    """Return the starts of the segments on disk."""
    return sorted(int(path.name.rpartition(".")[2]) for path in (task.state_dir / name).iterdir())


@pytest.mark.parametrize(
    ("supplier", "builder", "families"),
    [
        (Stores.persistent_key_value_store, Stores.key_value_store_builder, {"default", "offsets"}),
        (
            Stores.persistent_timestamped_key_value_store,
            Stores.timestamped_key_value_store_builder,
            {"default", "offsets", "keyValueWithTimestamp"},
        ),
        (
            Stores.persistent_timestamped_key_value_store_with_headers,
            Stores.timestamped_key_value_store_with_headers_builder,
            {"default", "offsets", "keyValueWithTimestampAndHeaders"},
        ),
    ],
)
def test_new_database_has_the_families_of_its_format_only(task, supplier, builder, families):
    """As in Java, the column families of older formats are opened if they exist, and never created."""
    store = task.open(builder(supplier("s"), S, S))
    store.close()
    assert set(Rdict.list_cf(str(task.state_dir / "rocksdb" / "s"), Options(raw_mode=True))) == families


def test_expired_segment_stays_on_disk_until_the_commit(task):
    """An expired segment cannot be seen any more, but records that are replayed after a crash can still read it."""
    store = task.open(windows())
    store.put("a", "1", 0)
    task.commit(store)
    store.put("a", "2", 500)
    assert list(store.all()) != []
    assert store.fetch("a", 0) is None
    assert segments_of(task) == [0]
    task.commit(store)
    assert segments_of(task) == [500]


def test_uncommitted_expiry_is_undone_by_a_restart(task):
    """If nothing is committed after a segment has expired, the store opens with that segment."""
    store = task.open(windows())
    store.put("a", "1", 0)
    task.commit(store)
    store.put("a", "2", 500)
    store.close()
    assert task.open(windows()).fetch("a", 0) == "1"


@pytest.mark.parametrize("segment", [150, 2 * SEGMENT, SEGMENT // 2])
def test_state_is_restored_if_a_changed_retention_divides_it_differently(task, segment):
    """Windows would not be found in segments of another length, and their offsets would prevent a restoration."""
    store = task.open(windows())
    for start in range(0, 300, 50):
        store.put("a", str(start), start)
    task.commit(store)
    store.close()
    with pytest.raises(TaskCorruptedError, match="retention was changed"):
        task.open(windows(retention=1000, segment=segment))
    shutil.rmtree(task.state_dir / "w")
    restored = task.open(windows(retention=1000, segment=segment))
    restored.restore(task.log("w"))
    assert [value for _, value in restored.fetch("a", 0, 300)] == [str(start) for start in range(0, 300, 50)]


def test_versions_are_restored_if_a_changed_retention_divides_them_differently(task):
    """As of a past time, versions would not be found in segments of another length."""

    def versions(segment):
        supplier = Stores.persistent_versioned_key_value_store("v", 1000, segment)
        return Stores.versioned_key_value_store_builder(supplier, S, S)

    store = task.open(versions(200))
    for time in range(0, 600, 100):
        store.put("a", str(time), time)
    task.commit(store)
    store.close()
    with pytest.raises(TaskCorruptedError, match="retention was changed"):
        task.open(versions(100))
    assert task.open(versions(200)).get("a", 250).value == "200"


@pytest.mark.parametrize("content", [None, ""], ids=["missing", "empty"])
def test_an_unknown_length_of_segments_costs_no_state(task, content):
    """A store of Java or an old version, or of a machine that lost power before the file had its content, is kept."""
    store = task.open(windows())
    store.put("a", "1", 0)
    task.commit(store)
    store.close()
    file = task.state_dir / "millrace-segments-w"
    length = file.read_text()
    file.unlink()
    if content is not None:
        file.write_text(content)
    assert [row.value for row in task.open(windows()).all()] == ["1"]
    assert file.read_text() == length


def test_deletion_that_was_cut_short_is_finished(task):
    """The remains of a segment whose deletion was interrupted are not a segment, and are deleted on the next opening."""
    left = task.state_dir / "w.0.deleted"
    left.mkdir(parents=True)
    (left / "CURRENT").write_text("MANIFEST-000001\n")
    assert list(task.open(windows()).all()) == []
    assert not left.exists()


def test_null_among_duplicates_counts_in_the_changelog_only(task):
    """If duplicates are retained, a null is logged with its own sequence number, which is not used on disk."""
    store = task.open(windows(retain_duplicates=True))
    for value in ["x", None, "y"]:
        store.put("a", value, 0)
    task.commit(store)
    (segment,) = store._bytes_store.databases()
    assert [decode_window_key(row).seq for row, _ in segment.scan(None, None)] == [1, 2]
    assert [decode_window_key(record.key).seq for record in task.log("w")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("supplier", "builder"),
    [
        (Stores.persistent_key_value_store("s"), Stores.key_value_store_builder),
        (Stores.persistent_timestamped_key_value_store("s"), Stores.timestamped_key_value_store_builder),
        (
            Stores.persistent_timestamped_key_value_store_with_headers("s"),
            Stores.timestamped_key_value_store_with_headers_builder,
        ),
        (Stores.in_memory_key_value_store("s"), Stores.key_value_store_builder),
        (Stores.lru_map("s", 10), Stores.key_value_store_builder),
        (Stores.persistent_window_store("s", RETENTION, 10), Stores.window_store_builder),
        (Stores.persistent_session_store("s", RETENTION), Stores.session_store_builder),
        (Stores.persistent_versioned_key_value_store("s", RETENTION), Stores.versioned_key_value_store_builder),
    ],
)
def test_suppliers_can_be_sent_to_other_processes(task, supplier, builder):
    """A pickled supplier makes stores with the same layout."""
    copy = pickle.loads(pickle.dumps(supplier))
    store = task.open(builder(copy, S, S))
    assert type(store._bytes_store) is type(supplier.get())


def sessions(layout):
    """Return a builder of a session store."""
    supplier = getattr(Stores, f"persistent_{layout}session_store")("s", 10_000)
    return Stores.session_store_builder(supplier, S, S)


def ordered_windows(layout):
    """Return a builder of a window store with timestamps."""
    if layout == "time_ordered_":
        supplier = Stores.persistent_time_ordered_window_store("s", 10_000, 10, has_index=False, with_headers=False)
    else:
        supplier = Stores.persistent_timestamped_window_store("s", 10_000, 10)
    return Stores.timestamped_window_store_builder(supplier, S, S)


@pytest.mark.parametrize(("before", "after"), [("", "time_ordered_"), ("time_ordered_", "")])
@pytest.mark.parametrize("builder", [sessions, ordered_windows])
def test_state_is_restored_if_windows_are_kept_in_another_order(task, builder, before, after):
    """Results that are emitted on close need another order of rows: those on disk would not be found, or be misread."""
    store = task.open(builder(before))
    if builder is sessions:
        store.put(Windowed("a", Window(0, 5)), "1")
    else:
        store.put("a", ValueAndTimestamp("1", 3), 0)
    task.commit(store)
    store.close()
    with pytest.raises(TaskCorruptedError, match="order of rows was changed"):
        task.open(builder(after))
    shutil.rmtree(task.state_dir / "s")
    restored = task.open(builder(after))
    restored.restore(task.log("s"))
    assert len(list(restored.fetch("a", 0, 100) if builder is ordered_windows else restored.fetch("a"))) == 1
    task.commit(restored)
    restored.close()
    assert task.open(builder(after)).is_open()
