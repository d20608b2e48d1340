"""Reading the changelog offsets of stores that are on disk but not open."""

from __future__ import annotations

import pytest
from rocksdict import Options, Rdict

from millrace.errors import ProcessorStateError
from millrace.records import TopicPartition
from millrace.serdes.primitives import StringSerde
from millrace.state import Stores
from millrace.state.disk_offsets import offset_on_disk
from millrace.state.suppliers import WindowSupplier

S = StringSerde()
CHANGELOG = TopicPartition("app-s-changelog", 0)


def key_value(supplier=Stores.persistent_key_value_store):
    """Return a builder of a key-value store named `s`."""
    return Stores.key_value_store_builder(supplier("s"), S, S)


def test_offset_is_that_of_the_last_commit(task):
    """A store that was closed, or is open, has the offset of its last commit on disk; reading it leaves the store usable."""
    store = task.open(key_value())
    store.put("a", "1")
    store.commit({CHANGELOG: 41})
    store.close()
    assert offset_on_disk(task.state_dir, "s", CHANGELOG) == 41
    again = task.open(key_value())
    assert again.get("a") == "1"
    assert offset_on_disk(task.state_dir, "s", CHANGELOG) == 41
    again.close()


def test_smallest_offset_of_the_segments_counts(task):
    """Segments to which nothing was written for a while are behind; what they have recorded is what would be restored from."""
    supplier = WindowSupplier("s", 300, 10, segment_interval_ms=100)
    store = task.open(Stores.window_store_builder(supplier, S, S))
    store.put("a", "1", 0)
    store.commit({CHANGELOG: 4})
    store.put("a", "2", 150)
    store.commit({CHANGELOG: 9})
    expected = store.committed_offset(CHANGELOG)
    store.close()
    assert offset_on_disk(task.state_dir, "s", CHANGELOG) == expected


def test_stores_without_an_offset(task):
    """A store that was never committed, one of another changelog, one in memory and one of an old Java have none."""
    task.open(key_value()).close()
    assert offset_on_disk(task.state_dir, "s", CHANGELOG) is None
    task.open(key_value(Stores.in_memory_key_value_store)).close()
    assert offset_on_disk(task.state_dir, "other", CHANGELOG) is None
    old = task.state_dir / "rocksdb" / "old"
    old.mkdir()
    Rdict(str(old), Options(raw_mode=True)).close()
    assert offset_on_disk(task.state_dir, "old", CHANGELOG) is None


def test_under_exactly_once_a_store_that_java_left_open_counts_for_nothing(task):
    """What a Java process left open when it died is wiped under exactly-once, so nobody may count on it."""
    store = task.open(key_value())
    store.commit({CHANGELOG: 41})
    store.close()
    path = task.state_dir / "rocksdb" / "s"
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(path), Options(raw_mode=True))}
    database = Rdict(str(path), Options(raw_mode=True), families)
    database.get_column_family("offsets")[b"status"] = (1).to_bytes(8)
    database.close()
    assert offset_on_disk(task.state_dir, "s", CHANGELOG, exactly_once=True) is None
    assert offset_on_disk(task.state_dir, "s", CHANGELOG) == 41


def test_damaged_store_is_an_error(task):
    """A database that cannot be read is reported, as how far it is is unknown."""
    store = task.open(key_value())
    store.commit({CHANGELOG: 1})
    store.close()
    (task.state_dir / "rocksdb" / "s" / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(ProcessorStateError, match="rocksdb/s"):
        offset_on_disk(task.state_dir, "s", CHANGELOG)
