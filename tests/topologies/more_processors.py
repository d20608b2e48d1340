"""More of the Processor API, as `java/differential/ExtraProcessors.java`: every kind of store, cached and in memory."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from tests.topologies.processors import (
    GlobGet,
    GlobProc,
    HdrProc,
    KvCounter,
    PunctProc,
    RangeProc,
    Router,
    Scans,
    SessProc,
    SharedPut,
    VerProc,
    WinProc,
    _one,
)
from tests.topologies.streams import Dedup
from tests.topologies.support import L, S, text

from millrace.processor.api import Processor
from millrace.records import Record, Window, Windowed
from millrace.state import Stores
from millrace.state.keys import MAX_LONG
from millrace.topology import Topology


def _keyed(rows: Iterable[Any]) -> str:
    return ",".join(f"{w.key}@{w.window.start}..{w.window.end}={v}" for w, v in rows)


class WinScans(Processor[str, str, str, str]):
    """Puts (or deletes) windows at steps of 20 ms and forwards what every kind of scan finds."""

    def __init__(self, scans: Scans = Scans.ALL) -> None:
        self.scans = scans

    def process(self, record: Record[str, str]) -> None:
        if self.scans.skips(record):
            return
        store, key = self.context.get_state_store("ws"), record.key
        ts = record.timestamp - record.timestamp % 20
        store.put(key, record.value, ts)

        def show(name: str, found: str) -> None:
            self.context.forward(record.with_key(name).with_value(found))

        show("one", text(store.fetch(key, max(0, ts - 40))))
        show("keys", _keyed(store.fetch_keys("k2", "k4", max(0, ts - 100), ts)))
        show("all", _keyed(store.all()))
        if self.scans.backward:
            show("back", ",".join(f"{t}={v}" for t, v in store.backward_fetch(key, max(0, ts - 100), ts + 50)))
            show("keys-back", _keyed(store.backward_fetch_keys(None, "k3", max(0, ts - 100), ts)))
            show("all-back", _keyed(store.backward_all()))
            show("fetch-back", _keyed(store.backward_fetch_all(max(0, ts - 60), ts + 10)))


class SessScans(Processor[str, str, str, str]):
    """Puts (or removes) sessions and forwards what every kind of scan finds."""

    def __init__(self, scans: Scans = Scans.ALL) -> None:
        self.scans = scans

    def process(self, record: Record[str, str]) -> None:
        if self.scans.skips(record):
            return
        store, key, ts = self.context.get_state_store("ss"), record.key, record.timestamp
        start = max(0, ts - ts % 50)
        end = start + ts % 7 * 5
        session = Windowed(key, Window(start, end))
        if record.value is None:
            store.remove(session)
        else:
            store.put(session, record.value)

        def show(name: str, found: str) -> None:
            self.context.forward(record.with_key(name).with_value(found))

        show("fetch", _keyed(store.fetch(key)))
        show("find", _keyed(store.find_sessions(key, max(0, ts - 60), ts)))
        show("keys", _keyed(store.find_sessions_of_keys("k2", "k4", max(0, ts - 100), ts)))
        show("fetch-keys", _keyed(store.fetch_keys("k1", "k5")))
        show("one", text(store.fetch_session(key, start, end)))
        if self.scans.backward:
            show("fetch-back", _keyed(store.backward_fetch(key)))
            latest = MAX_LONG if self.scans is Scans.WITHOUT_DELETES else ts + 10
            show("find-back", _keyed(store.backward_find_sessions(key, max(0, ts - 160), latest)))
            show("keys-back", _keyed(store.backward_find_sessions_of_keys(None, "k3", max(0, ts - 100), ts)))


def papi_read_only() -> Topology:
    """A copy of a topic as a store."""
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("gs"), S, S)
    return (
        Topology()
        .add_read_only_state_store(store, "rsrc", "g", "rproc", GlobProc, key_serde=S, value_serde=S)
        .add_source("src", "in")
        .add_processor("p", GlobGet, "src")
        .connect_processor_and_state_stores("p", "gs")
        .add_sink("snk", "out", "p")
    )


def papi_global_persistent() -> Topology:
    """A global store on disk."""
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("gs"), S, S).with_logging_disabled()
    return (
        Topology()
        .add_global_store(store, "gsrc", "g", "gproc", GlobProc, key_serde=S, value_serde=S)
        .add_source("src", "in")
        .add_processor("p", GlobGet, "src")
        .add_sink("snk", "out", "p")
    )


def papi_diamond() -> Topology:
    """A processor with two parents; a sink at the source."""
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("cnt"), S, L)
    return (
        Topology()
        .add_source("src", "in")
        .add_processor("left", HdrProc, "src")
        .add_processor("right", PunctProc, "src")
        .add_processor("both", KvCounter, "left", "right")
        .add_state_store(store, "both")
        .add_sink("snk", "out", "both")
        .add_sink("raw", "out2", "src")
    )


def papi_two_tasks() -> Topology:
    """Two sub-topologies joined by a topic."""
    shared = Stores.key_value_store_builder(Stores.lru_map("shared", 2), S, S)
    seen = Stores.key_value_store_builder(Stores.in_memory_key_value_store("seen"), S, S).with_logging_disabled()
    return (
        Topology()
        .add_source("s1", "in1")
        .add_processor("p1", Router, "s1")
        .add_processor("p-even", SharedPut, "p1")
        .add_processor("p-odd", SharedPut, "p1")
        .add_state_store(shared, "p-even", "p-odd")
        .add_sink("k1", "middle", "p-even", "p-odd")
        .add_source("s2", "middle", "in2")
        .add_processor("p2", Dedup, "s2")
        .add_state_store(seen, "p2")
        .add_sink("k2", "out", "p2")
    )


def _pairs(supplier: Any) -> Any:
    return Stores.key_value_store_builder(supplier, S, S)


def _windows(supplier: Any) -> Any:
    return Stores.window_store_builder(supplier, S, S)


def _sessions(supplier: Any) -> Any:
    return Stores.session_store_builder(supplier, S, S)


def _versions(retention: int, segment: int | None = None) -> Any:
    return Stores.versioned_key_value_store_builder(
        Stores.persistent_versioned_key_value_store("v", retention, segment), S, S
    )


_DISK_WINDOWS = Stores.persistent_window_store("ws", 300, 100)
_MEMORY_WINDOWS = Stores.in_memory_window_store("ws", 300, 100)
_LONG_WINDOWS = Stores.persistent_window_store("ws", 400, 100)
_DISK_SESSIONS = Stores.persistent_session_store("ss", 400)
ONE_STORE = {
    "papi_range_inmem": (RangeProc, lambda: _pairs(Stores.in_memory_key_value_store("r"))),
    "papi_range_cached": (
        partial(RangeProc, Scans.FORWARD),
        lambda: _pairs(Stores.persistent_key_value_store("r")).with_caching_enabled(),
    ),
    "papi_range_cached_back": (
        partial(RangeProc, Scans.WITHOUT_DELETES),
        lambda: _pairs(Stores.persistent_key_value_store("r")).with_caching_enabled(),
    ),
    "papi_range_inmem_cached": (
        partial(RangeProc, Scans.FORWARD),
        lambda: _pairs(Stores.in_memory_key_value_store("r")).with_caching_enabled(),
    ),
    "papi_range_inmem_cached_back": (
        partial(RangeProc, Scans.WITHOUT_DELETES),
        lambda: _pairs(Stores.in_memory_key_value_store("r")).with_caching_enabled(),
    ),
    "papi_versioned_short": (VerProc, lambda: _versions(60)),
    "papi_versioned_segments": (VerProc, lambda: _versions(200, 50).with_logging_disabled()),
    "papi_window_cached": (WinProc, lambda: _windows(_DISK_WINDOWS).with_caching_enabled()),
    "papi_window_inmem": (WinProc, lambda: _windows(_MEMORY_WINDOWS)),
    "papi_window_inmem_cached": (WinProc, lambda: _windows(_MEMORY_WINDOWS).with_caching_enabled()),
    "papi_window_inmem_dups": (
        WinProc,
        lambda: _windows(Stores.in_memory_window_store("ws", 300, 100, retain_duplicates=True)),
    ),
    "papi_window_dups_logged": (
        WinProc,
        lambda: _windows(Stores.persistent_window_store("ws", 300, 100, retain_duplicates=True)).with_logging_enabled(
            {"segment.ms": "77"}
        ),
    ),
    "papi_session_cached": (
        SessProc,
        lambda: _sessions(Stores.persistent_session_store("ss", 500)).with_caching_enabled(),
    ),
    "papi_session_inmem": (SessProc, lambda: _sessions(Stores.in_memory_session_store("ss", 500))),
    "papi_session_short": (
        SessProc,
        lambda: _sessions(Stores.in_memory_session_store("ss", 60)).with_caching_enabled(),
    ),
    "papi_window_scans": (WinScans, lambda: _windows(_LONG_WINDOWS)),
    "papi_window_scans_cached": (
        partial(WinScans, Scans.FORWARD),
        lambda: _windows(_LONG_WINDOWS).with_caching_enabled(),
    ),
    "papi_window_scans_cached_back": (
        partial(WinScans, Scans.WITHOUT_DELETES),
        lambda: _windows(_LONG_WINDOWS).with_caching_enabled(),
    ),
    "papi_window_scans_inmem": (WinScans, lambda: _windows(Stores.in_memory_window_store("ws", 400, 100))),
    "papi_session_scans": (SessScans, lambda: _sessions(_DISK_SESSIONS)),
    "papi_session_scans_cached": (
        partial(SessScans, Scans.FORWARD),
        lambda: _sessions(_DISK_SESSIONS).with_caching_enabled(),
    ),
    "papi_session_scans_cached_back": (
        partial(SessScans, Scans.WITHOUT_DELETES),
        lambda: _sessions(_DISK_SESSIONS).with_caching_enabled(),
    ),
    "papi_session_scans_inmem": (SessScans, lambda: _sessions(Stores.in_memory_session_store("ss", 400))),
}
"""A processor and its store each."""


def one_store(name: str) -> Any:
    """Return the function that builds one of these topologies."""
    supplier, store = ONE_STORE[name]
    return lambda: _one(supplier, store())
