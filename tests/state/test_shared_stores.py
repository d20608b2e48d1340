"""Stores that other threads read while their own thread writes and commits them, as with global stores."""

from __future__ import annotations

import threading

import pytest

from millrace.records import TopicPartition, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import Stores

STRING = Serdes.string()
KEYS = [f"k{number:03}" for number in range(300)]
ROUNDS = 40
HOUR_MS = 3_600_000


def key_value(supplier):
    """Return a builder of a key-value store without a changelog."""
    return Stores.key_value_store_builder(supplier, STRING, STRING).with_logging_disabled()


def window(supplier):
    """Return a builder of a window store without a changelog."""
    return Stores.window_store_builder(supplier, STRING, STRING).with_logging_disabled()


def session(supplier):
    """Return a put for a session count."""
    return Stores.session_store_builder(supplier, STRING, STRING).with_logging_disabled()


def read_while_written(store, write, remove, scans):
    """Write keys, add and remove others, and commit, all the time, while this thread scans; return the scans that were wrong."""
    failures = []
    done = threading.Event()

    def run():
        try:
            for number in range(ROUNDS):
                for at, key in enumerate(KEYS):
                    write(key, str(number))
                    write(f"{key}+", str(number))
                    remove(f"{KEYS[at - 5]}+")
                    if at % 20 == 0:
                        store.commit({TopicPartition("topic", 0): number})
        except Exception as error:
            failures.append(error)
        finally:
            done.set()

    for key in KEYS:
        write(key, "first")
    store.commit({})
    writer = threading.Thread(target=run, daemon=True)
    writer.start()
    wrong = []
    while not done.is_set():
        for name, scan, expected in scans:
            try:
                found = [key for key in scan() if not key.endswith("+")]
            except Exception as error:
                wrong.append((name, repr(error)))
            else:
                if found != expected:
                    wrong.append((name, len(found)))
    writer.join(60)
    assert not failures
    return wrong


@pytest.mark.usefixtures("switching_often")
@pytest.mark.parametrize(
    "supplier",
    [
        Stores.persistent_key_value_store("s"),
        Stores.in_memory_key_value_store("s"),
        Stores.lru_map("s", 1000),
    ],
    ids=["rocksdb", "memory", "lru"],
)
def test_scan_of_a_key_value_store_finds_every_key_once(task, supplier):
    """During writes and commits, a scan has every key that was there all the time, once and in order."""
    store = task.open(key_value(supplier), shared=True)

    def keys(scan, *args):
        return lambda: [pair.key for pair in scan(*args)]

    scans = [
        ("all", keys(store.all), KEYS),
        ("reverse_all", keys(store.reverse_all), KEYS[::-1]),
        ("range", keys(store.range, "k100", "k199"), KEYS[100:200]),
        ("reverse_range", keys(store.reverse_range, "k100", "k199"), KEYS[199:99:-1]),
        ("prefix_scan", keys(store.prefix_scan, "k1"), KEYS[100:200]),
        ("get", lambda: [key for key in KEYS if store.get(key) is not None], KEYS),
    ]
    assert read_while_written(store, store.put, store.delete, scans) == []


@pytest.mark.usefixtures("switching_often")
@pytest.mark.parametrize(
    "supplier",
    [
        Stores.persistent_window_store("s", 10 * HOUR_MS, HOUR_MS),
        Stores.in_memory_window_store("s", 10 * HOUR_MS, HOUR_MS),
    ],
    ids=["rocksdb", "memory"],
)
def test_scan_of_a_window_store_finds_every_window_once(task, supplier):
    """The same is true of windows, while others come and go."""
    store = task.open(window(supplier), shared=True)

    def start_of(key):
        return HOUR_MS * (int(key[1:4]) % 9) if key.endswith("+") else 0

    def write(key, value):
        store.put(key, value, start_of(key))

    scans = [
        ("all", lambda: [pair.key.key for pair in store.all()], KEYS),
        ("fetch_all", lambda: [pair.key.key for pair in store.backward_fetch_all(0, 9 * HOUR_MS)], KEYS[::-1]),
        ("fetch_keys", lambda: [pair.key.key for pair in store.fetch_keys("k100", "k199", 0, 0)], KEYS[100:200]),
    ]
    assert read_while_written(store, write, lambda key: write(key, None), scans) == []


@pytest.mark.usefixtures("switching_often")
@pytest.mark.parametrize(
    "supplier",
    [Stores.persistent_session_store("s", 10 * HOUR_MS), Stores.in_memory_session_store("s", 10 * HOUR_MS)],
    ids=["rocksdb", "memory"],
)
def test_scan_of_a_session_store_finds_every_session_once(task, supplier):
    """The same is true of sessions, while others come and go."""
    store = task.open(session(supplier), shared=True)

    def write(key, value):
        end = HOUR_MS * (int(key[1:4]) % 9) if key.endswith("+") else 0
        store.put(Windowed(key, Window(0, end)), value)

    scans = [
        ("fetch_keys", lambda: [pair.key.key for pair in store.fetch_keys("k000", "k999")], KEYS),
        ("backward", lambda: [pair.key.key for pair in store.backward_fetch_keys("k100", "k199")], KEYS[199:99:-1]),
    ]
    assert read_while_written(store, write, lambda key: write(key, None), scans) == []


def test_commit_waits_for_a_scan_that_begins(task, monkeypatch):
    """A commit while a scan collects the pending rows would hide them from the scan."""
    store = task.open(key_value(Stores.persistent_key_value_store("s")), shared=True)
    for key in KEYS:
        store.put(key, "v")
    committing = threading.Thread(target=store.commit, args=({},), daemon=True)
    waiting = store._bytes_store._pending
    collect = type(waiting).keys

    def collect_slowly(self, *args, **options):
        keys = collect(self, *args, **options)
        committing.start()
        committing.join(0.5)  # it ends by then where nothing holds it up
        return keys

    monkeypatch.setattr(type(waiting), "keys", collect_slowly)
    assert [pair.key for pair in store.all()] == KEYS
    committing.join(60)
    assert not store._bytes_store._pending_rows
    monkeypatch.undo()
    assert [pair.key for pair in store.all()] == KEYS
