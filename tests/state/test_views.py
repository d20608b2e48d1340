"""Views of stores: what queries read in other threads while the store's own thread writes, flushes, commits and closes it."""

from __future__ import annotations

import threading
import tracemalloc

import pytest
from tests.waiting import PATIENCE_S

from millrace.errors import InvalidStateStoreError
from millrace.records import KeyValue, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.state.rocksdb import RocksDatabase

STRING, NUMBER = Serdes.string(), Serdes.long()
KEYS = [f"k{number:02}" for number in range(40)]
ROUNDS = 60
HOUR_MS = 3_600_000
KINDS = ["key-value", "window", "session", "versioned"]


def builder(kind, *, persistent=True, caching=False):
    """Return the builder of a store of numbers."""
    if kind == "versioned":
        supplier = Stores.persistent_versioned_key_value_store("s", HOUR_MS)
        return Stores.versioned_key_value_store_builder(supplier, STRING, NUMBER)
    if kind == "key-value":
        made = Stores.persistent_key_value_store if persistent else Stores.in_memory_key_value_store
        built = Stores.key_value_store_builder(made("s"), STRING, NUMBER)
    elif kind == "window":
        made = Stores.persistent_window_store if persistent else Stores.in_memory_window_store
        built = Stores.window_store_builder(made("s", 10 * HOUR_MS, 10), STRING, NUMBER)
    else:
        made = Stores.persistent_session_store if persistent else Stores.in_memory_session_store
        built = Stores.session_store_builder(made("s", 10 * HOUR_MS), STRING, NUMBER)
    return built.with_caching_enabled() if caching else built


def window_of(key):
    """Return the time of a key's window or session: keys are in two segments."""
    return KEYS.index(key) % 2 * 5 * HOUR_MS


def put(store, key, number):
    """Write a number."""
    if store.kind == "versioned":
        store.put(key, number, number)
    elif store.kind == "key-value":
        store.put(key, number)
    elif store.kind == "window":
        store.put(key, number, window_of(key))
    else:
        at = window_of(key)
        store.put(Windowed(key, Window(at, at)), number)


def get(store, key):
    """Read a number."""
    if store.kind == "versioned":
        found = store.get(key)
        return None if found is None else found.value
    if store.kind == "key-value":
        return store.get(key)
    at = window_of(key)
    return store.fetch(key, at) if store.kind == "window" else store.fetch_session(key, at, at)


def everything(store):
    """Read all numbers by key."""
    if store.kind == "versioned":
        return {key: get(store, key) for key in KEYS}
    if store.kind == "key-value":
        rows = list(store.all())
    elif store.kind == "window":
        rows = [KeyValue(row.key.key, row.value) for row in store.fetch_all(0, 100 * HOUR_MS)]
    else:
        rows = [KeyValue(row.key.key, row.value) for row in store.fetch_keys(None, None)]
    found = {row.key: row.value for row in rows}
    assert len(found) == len(rows), f"a key twice: {rows}"
    return found


def write_all(task, store, *, read, commit_every=1):
    """Write 1, 2, 3 … for every key while a thread calls `read`; return what went wrong there."""
    failures = []
    done = threading.Event()

    def reading():
        try:
            while not done.is_set():
                read()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=reading)
    thread.start()
    try:
        for number in range(1, ROUNDS + 1):
            for key in KEYS:
                task.at(number)
                put(store, key, number)
            if number % commit_every == 0:
                task.commit(store)
    finally:
        done.set()
        thread.join()
    return failures


CASES = [
    *((kind, persistent, cache) for kind in KINDS[:3] for persistent in (True, False) for cache in (None, 1500, 10**6)),
    ("versioned", True, None),
]


@pytest.mark.parametrize(("kind", "persistent", "cache_bytes"), CASES)
def test_what_was_seen_is_never_taken_back(make_task, switching_often, kind, persistent, cache_bytes):
    """Numbers only grow, whatever the store's thread is doing: caching, evicting, flushing or committing them."""
    task = make_task(cache_bytes=cache_bytes)
    store = task.open(builder(kind, persistent=persistent, caching=cache_bytes is not None))
    for key in KEYS:
        put(store, key, 0)
    seen = dict.fromkeys(KEYS, 0)
    reads = 0

    def look():
        nonlocal reads
        view = store.view(committed=False)
        for key in KEYS:
            number = get(view, key)
            assert number is not None, f"{key} is gone"
            assert number >= seen[key], f"{key}: {number} after {seen[key]}"
            seen[key] = number
        for key, number in everything(store.view(committed=False)).items():
            assert number >= seen[key], f"{key}: {number} after {seen[key]} in a range"
            seen[key] = number
        reads += 1

    assert write_all(task, store, read=look, commit_every=7) == []
    look()
    assert seen == dict.fromkeys(KEYS, ROUNDS)
    assert reads > 1


@pytest.mark.parametrize("cache_bytes", [None, 1500])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_committed_range_is_that_of_one_commit(make_task, switching_often, kind, cache_bytes):
    """Each range has the same number for all keys, also across segments, and the numbers of commits only grow."""
    task = make_task(cache_bytes=cache_bytes)
    store = task.open(builder(kind, caching=cache_bytes is not None))
    seen = 0
    found = []

    def look():
        nonlocal seen
        numbers = set(everything(store.view(committed=True)).values())
        assert len(numbers) <= 1, f"of several commits: {numbers}"
        for number in numbers:
            assert number >= seen
            seen = number
            found.append(number)

    assert write_all(task, store, read=look) == []
    look()
    assert seen == ROUNDS
    assert len(set(found)) > 1


def test_a_range_does_not_begin_in_the_middle_of_a_commit(make_task, monkeypatch):
    """A range that begins when one segment is committed and the next is not has the rows of all."""
    task = make_task()
    store = task.open(builder("window"))
    for number in (1, 2):
        task.at(number)
        for key in KEYS:
            put(store, key, number)
        if number == 1:
            task.commit(store)
    commit, found = RocksDatabase.commit, []
    reader = threading.Thread(target=lambda: found.append(everything(store.view(committed=True))))

    def commit_and_read(database, offsets):
        commit(database, offsets)
        if reader.ident is None:
            reader.start()
            reader.join(0.5)  # it must not end: it waits for the commit

    monkeypatch.setattr(RocksDatabase, "commit", commit_and_read)
    task.commit(store)
    reader.join()
    assert found == [dict.fromkeys(KEYS, 2)]


def test_waiting_rows_do_not_hide_newer_ones(make_task, monkeypatch):
    """If a commit comes between looking at waiting rows and at the disk, both are looked at again."""
    task = make_task()
    store = task.open(builder("key-value"))
    put(store, "k00", 1)
    scan_disk = RocksDatabase._scan_disk
    commits = iter([2])

    def commit_first(database, *bounds, **options):
        for number in commits:
            put(store, "k00", number)
            task.commit(store)
        return scan_disk(database, *bounds, **options)

    monkeypatch.setattr(RocksDatabase, "_scan_disk", commit_first)
    assert everything(store.view(committed=False)) == {"k00": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_committed_rows_are_those_on_disk(make_task, kind):
    """What was put since the last commit is only in an uncommitted view, cached or not."""
    task = make_task(cache_bytes=10**6)
    store = task.open(builder(kind, caching=kind != "versioned"))
    task.at(1)
    put(store, "k00", 1)
    committed, uncommitted = store.view(committed=True), store.view(committed=False)
    assert get(committed, "k00") is None
    assert get(uncommitted, "k00") == 1
    task.commit(store)
    task.at(2)
    put(store, "k00", 2)
    store.flush()
    assert get(store.view(committed=True), "k00") == 1
    assert get(store.view(committed=False), "k00") == 2


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_a_range_ends_with_an_error_when_its_store_is_closed(make_task, kind, committed):
    """Its snapshot is released, so that another owner can open the directory at once, and it does not end as if complete."""
    task = make_task()
    store = task.open(builder(kind))
    for key in KEYS:
        task.at(1)
        put(store, key, 1)
    task.commit(store)
    view = store.view(committed=committed)
    scan = view.fetch_keys(None, None) if kind == "session" else view.all()
    next(scan)
    store.close()
    with pytest.raises(InvalidStateStoreError, match="closed"):
        list(scan)
    with pytest.raises(InvalidStateStoreError, match="closed"):
        get(view, "k00")
    with pytest.raises(InvalidStateStoreError, match="not open"):
        store.view(committed=committed)
    again = task.open(builder(kind))
    assert everything(again) == dict.fromkeys(KEYS, 1)


def test_a_store_is_closed_while_it_is_read(make_task, switching_often):
    """Closing does not fail because other threads are reading, and they are told."""
    for number in range(30):
        task = make_task(f"0_{number}")
        store = task.open(builder("key-value"))
        for key in KEYS:
            put(store, key, 1)
        task.commit(store)
        view = store.view(committed=True)
        told = []

        def read(view=view, told=told):
            try:
                while True:
                    get(view, "k07")
            except InvalidStateStoreError as error:
                told.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        store.close()
        for thread in threads:
            thread.join()
        assert len(told) == 3


def test_a_commit_keeps_what_expires_after_it(make_task):
    """What is put after a commit moves stream time, but not that of the commit: an abort would take it back."""
    task = make_task()
    store = task.open(builder("window"))
    task.at(1)
    store.put("a", 1, 0)
    task.commit(store)
    store.put("b", 2, 100 * HOUR_MS)
    assert [row.key.key for row in store.view(committed=False).all()] == ["b"]
    assert [row.key.key for row in store.view(committed=True).all()] == ["a"]
    assert store.view(committed=True).fetch("a", 0) == 1
    task.commit(store)
    assert [row.key.key for row in store.view(committed=True).all()] == ["b"]


def test_a_range_has_the_cache_as_it_was(make_task):
    """What is put into the record cache after a range began is not in it."""
    task = make_task(cache_bytes=10**6)
    store = task.open(builder("key-value", caching=True))
    for key in ("a", "b", "c"):
        put(store, key, 1)
    rows = store.view(committed=False).all()
    assert next(rows) == ("a", 1)
    put(store, "b", 2)
    store.delete("c")
    assert list(rows) == [("b", 1), ("c", 1)]


def test_entries_are_found_until_they_are_written(make_task):
    """An entry that is evicted by what another one's write-back causes is still found before it is written itself."""
    task = make_task(cache_bytes=10**6)
    store = task.open(builder("key-value", caching=True))
    for key in ("a", "b"):
        put(store, key, 1)
    found = []

    def listener(key, _change, _timestamp, _headers):
        if task.cache.max_bytes == 10**6 and not found:
            task.cache.max_bytes = 0
            put(store, "c", 1)  # evicts all others
            task.cache.max_bytes = 10**6
            found.extend(get(store.view(committed=False), other) for other in ("a", "b", "c"))

    store.set_flush_listener(listener, send_old_values=False)
    for key in ("a", "b"):
        put(store, key, 2)
    store.flush()
    assert found == [2, 2, 1]
    assert everything(store.view(committed=False)) == {"a": 2, "b": 2, "c": 1}


def test_the_owner_waits_for_no_range_of_others(make_task):
    """While a range of another thread begins, the store's own thread reads its segments."""
    task = make_task()
    store = task.open(builder("window"))
    put(store, "k01", 1)
    guard, held, released = store._bytes_store._guard, threading.Event(), threading.Event()

    def hold():
        with guard:
            held.set()
            released.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(PATIENCE_S)
        assert everything(store) == {"k01": 1}
        assert not released.is_set()
    finally:
        released.set()
        thread.join()


def test_a_global_store_is_closed_while_a_range_is_open(make_task):
    """The range ends with an error, and the directory can be opened again at once."""
    task = make_task()
    store = task.open(builder("key-value"), shared=True)
    for key in KEYS:
        put(store, key, 1)
    task.commit(store)
    rows = store.view(committed=False).all()
    next(rows)
    store.close()
    with pytest.raises(InvalidStateStoreError, match="closed"):
        next(rows)
    assert everything(task.open(builder("key-value"))) == dict.fromkeys(KEYS, 1)


def test_expired_segments_end_in_silence(make_task):
    """A range that is in a segment when its rows expire goes on with the next one, as in Java."""
    task = make_task()
    store = task.open(builder("window"))
    for at in (0, 20 * HOUR_MS):
        task.at(at)
        store.put("a", 1, at)
        store.put("b", 2, at)
        task.commit(store)
        if at == 0:
            scan = store.view(committed=True).all()
            assert next(scan).key.key == "a"
    assert list(scan) == []


def test_a_range_over_many_rows_needs_little_memory(make_task):
    """The rows of a committed range are read one by one: the snapshot is RocksDB's."""
    task = make_task()
    store = task.open(builder("key-value"))
    for number in range(50_000):
        store.put(f"{number:08}", number)
    task.commit(store)
    tracemalloc.start()
    try:
        assert sum(1 for _ in store.view(committed=True).all()) == 50_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
