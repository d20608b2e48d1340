"""The Processor API topologies of the golden cases."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from tests.topologies.streams import Dedup

from millrace.processor.api import Cancellable, Processor, ProcessorContext, PunctuationType
from millrace.records import Record, Window, Windowed
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.topology import Topology

S, L = Serdes.string(), Serdes.long()


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


class KvCounter(Processor[str, str, str, str]):
    """Counts per key in store `cnt`; punctuates in both times."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        super().init(context)
        self.store = context.get_state_store("cnt")
        context.schedule(100, PunctuationType.STREAM_TIME, self.total)
        context.schedule(
            1000, PunctuationType.WALL_CLOCK_TIME, lambda ts: context.forward(Record("*wall", str(ts), ts))
        )

    def total(self, ts: int) -> None:
        """Forward the sum of all counts."""
        self.context.forward(Record(f"*sum@{ts}", str(sum(count for _, count in self.store.all())), ts))

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            return
        if record.value is None:
            self.store.delete(record.key)
            self.context.forward(record)
            return
        count = (self.store.get(record.key) or 0) + 1
        self.store.put(record.key, count)
        self.context.forward(record.with_value(f"{record.key}={count}"))


class Router(Processor[str, str, str, str]):
    """Sends values of even length to one child, odd ones to the other, and k1 also to both."""

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record, "p-even" if len(record.value or "") % 2 == 0 else "p-odd")
        if record.key == "k1":
            self.context.forward(record.with_value("both"))


class SharedPut(Processor[str, str, str, str]):
    """Puts into the shared store and appends the value it replaces."""

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            return
        store = self.context.get_state_store("shared")
        old = store.get(record.key)
        store.put(record.key, record.value)
        self.context.forward(record.with_value(_text(record.value) + _text(old)))


class SharedGet(Processor[str, str, str, str]):
    """Appends the shared store's value."""

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            return
        found = self.context.get_state_store("shared").get(record.key)
        self.context.forward(record.with_value(f"{_text(record.value)}~{_text(found)}"))


class WinProc(Processor[str, str, str, str]):
    """Puts into window store `ws` and forwards what it fetches around each record."""

    def __init__(self) -> None:
        self.seen = 0

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            return
        store, ts = self.context.get_state_store("ws"), record.timestamp
        store.put(record.key, record.value, ts)
        found = ",".join(f"{t}={v}" for t, v in store.fetch(record.key, max(0, ts - 100), ts + 20))
        self.context.forward(record.with_value(found))
        self.seen += 1
        if self.seen % 5 == 0:
            rows = ",".join(f"{w.key}@{w.window.start}={v}" for w, v in store.fetch_all(max(0, ts - 150), ts))
            self.context.forward(Record("*all", rows, ts))


class Scans(Enum):
    """What a processor does with its store."""

    ALL = "deletes, and scans in both directions"
    FORWARD = "deletes, and scans forward only"
    WITHOUT_DELETES = "scans in both directions; skips records without a value"

    @property
    def backward(self) -> bool:
        """Whether to scan backwards."""
        return self is not Scans.FORWARD

    def skips(self, record: Record[str, str]) -> bool:
        """Tell whether to leave a record out."""
        return record.key is None or (record.value is None and self is Scans.WITHOUT_DELETES)


class RangeProc(Processor[str, str, str, str]):
    """Forwards every kind of range of store `r`."""

    def __init__(self, scans: Scans = Scans.ALL) -> None:
        self.scans = scans

    def process(self, record: Record[str, str]) -> None:
        if self.scans.skips(record):
            return
        store = self.context.get_state_store("r")
        before = store.put_if_absent(record.key + "x", record.value)
        store.put(record.key, record.value)

        def show(key: str, rows: Any) -> None:
            self.context.forward(record.with_key(key).with_value(",".join(f"{k}={v}" for k, v in rows)))

        show("range", store.range("k1", "k3"))
        if self.scans.backward:
            show("rev", store.reverse_range(None, "k3"))
        show("prefix", store.prefix_scan("k", S))
        show("all", store.all())
        if self.scans.backward:
            show("revall", store.reverse_all())
        self.context.forward(record.with_key("put-if").with_value(_text(before)))


class VerProc(Processor[str, str, str, str]):
    """Puts versions and forwards the store's contents."""

    def __init__(self) -> None:
        self.seen = 0

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            return
        store, key, ts = self.context.get_state_store("v"), record.key, record.timestamp
        answer = store.put(key, record.value, ts)
        current, then = store.get(key), store.get(key, ts - 50)
        self.context.forward(record.with_value(f"rc={answer} cur={_version(current)} asof={_version(then)}"))
        self.seen += 1
        if self.seen % 7 == 0:
            self.context.forward(record.with_key("*del").with_value(_version(store.delete(key, max(0, ts - 10)))))


def _version(record: Any) -> str:
    if record is None:
        return "null"
    return f"{record.value}@{record.timestamp}..{'-' if record.valid_to is None else record.valid_to}"


class GlobProc(Processor[str, str, None, None]):
    """Fills the global store with upper-cased values."""

    def process(self, record: Record[str, str]) -> None:
        if record.key is None:
            return
        store = self.context.get_state_store("gs")
        if record.value is None:
            store.delete(record.key)
        else:
            store.put(record.key, record.value.upper())


class GlobGet(Processor[str, str, str, str]):
    """Appends the global store's value."""

    def process(self, record: Record[str, str]) -> None:
        found = self.context.get_state_store("gs").get("n" if record.value is None else record.value[0])
        self.context.forward(record.with_value(f"{_text(record.value)}/{_text(found)}"))


class HdrProc(Processor[str, str, str, str]):
    """Changes headers, timestamps and keys of what it forwards."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        super().init(context)
        context.schedule(50, PunctuationType.STREAM_TIME, lambda ts: context.forward(Record("*p", str(ts), ts)))

    def process(self, record: Record[str, str]) -> None:
        headers = record.headers.add("proc", b"x").remove("h2")
        timestamp = record.timestamp + 5 if record.value is None else record.timestamp
        changed = record.with_headers(headers).with_timestamp(timestamp)
        self.context.forward(changed)
        self.context.forward(Record(None, "copy", record.timestamp))


class PunctProc(Processor[str, str, str, str]):
    """Schedules in both times, one cancelled, one anchored."""

    def init(self, context: ProcessorContext[str, str]) -> None:
        super().init(context)
        self.counts: dict[str, int] = {}
        self.cancellable: Cancellable
        context.schedule(100, PunctuationType.STREAM_TIME, self.fire("A"))
        context.schedule(300, PunctuationType.WALL_CLOCK_TIME, self.fire("B"))
        self.cancellable = context.schedule(50, PunctuationType.STREAM_TIME, self.fire("C"))
        context.schedule(400, PunctuationType.WALL_CLOCK_TIME, self.fire("D"), start_ms=150)

    def fire(self, name: str) -> Callable[[int], None]:
        """Return the punctuator of that name."""

        def punctuate(ts: int) -> None:
            count = self.counts[name] = self.counts.get(name, 0) + 1
            self.context.forward(Record(name, f"{count}@{ts}/st={self.context.current_stream_time_ms()}", ts))
            if name == "C" and count == 3:
                self.cancellable.cancel()

        return punctuate

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


class SessProc(Processor[str, str, str, str]):
    """Merges sessions by hand."""

    def process(self, record: Record[str, str]) -> None:
        if record.key is None or record.value is None:
            return
        store, key, ts = self.context.get_state_store("ss"), record.key, record.timestamp
        start = end = ts
        merged = ""
        for session, old in list(store.find_sessions(key, max(0, ts - 30), ts + 30)):
            start, end = min(start, session.window.start), max(end, session.window.end)
            merged = (merged + old)[-16:]
            store.remove(session)
        value = (merged + record.value)[-16:]
        store.put(Windowed(key, Window(start, end)), value)
        self.context.forward(record.with_value(f"{start}..{end}={value}"))


def _one(supplier: Callable[[], Processor[Any, Any, Any, Any]], store: Any = None) -> Topology:
    topology = Topology().add_source("src", "in").add_processor("p", supplier, "src")
    if store is not None:
        topology.add_state_store(store, "p")
    return topology.add_sink("snk", "out", "p")


def papi_kv() -> Topology:
    """A counter in a persistent store."""
    return _kv(Stores.key_value_store_builder(Stores.persistent_key_value_store("cnt"), S, L))


def papi_kv_cached() -> Topology:
    """The same behind the record cache."""
    return _kv(Stores.key_value_store_builder(Stores.persistent_key_value_store("cnt"), S, L).with_caching_enabled())


def _kv(store: Any) -> Topology:
    topology = Topology().add_source("src", "in").add_processor("counter", KvCounter, "src")
    return topology.add_state_store(store, "counter").add_sink("snk", "out", "counter")


def papi_fanout() -> Topology:
    """Forwarding by child name, one store shared by two processors."""
    shared = Stores.key_value_store_builder(Stores.in_memory_key_value_store("shared"), S, S)
    return (
        Topology()
        .add_source("src", "in1", "in2")
        .add_processor("router", Router, "src")
        .add_processor("p-even", SharedPut, "router")
        .add_processor("p-odd", SharedGet, "router")
        .add_state_store(shared, "p-even", "p-odd")
        .add_sink("s-even", "out-even", "p-even")
        .add_sink("s-odd", "out-odd", "p-odd")
    )


def papi_window_store() -> Topology:
    """A window store without duplicates."""
    return _one(WinProc, Stores.window_store_builder(Stores.persistent_window_store("ws", 300, 100), S, S))


def papi_window_dups() -> Topology:
    """A window store with duplicates."""
    supplier = Stores.persistent_window_store("ws", 300, 100, retain_duplicates=True)
    return _one(WinProc, Stores.window_store_builder(supplier, S, S))


def papi_range() -> Topology:
    """Ranges of a key-value store."""
    return _one(RangeProc, Stores.key_value_store_builder(Stores.persistent_key_value_store("r"), S, S))


def papi_versioned() -> Topology:
    """A versioned store."""
    supplier = Stores.persistent_versioned_key_value_store("v", 200)
    return _one(VerProc, Stores.versioned_key_value_store_builder(supplier, S, S))


def papi_global_store() -> Topology:
    """A global store filled by a processor."""
    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("gs"), S, S).with_logging_disabled()
    return (
        Topology()
        .add_global_store(store, "gsrc", "g", "gproc", GlobProc, key_serde=S, value_serde=S)
        .add_source("src", "in")
        .add_processor("p", GlobGet, "src")
        .add_sink("snk", "out", "p")
    )


def papi_headers() -> Topology:
    """Headers and timestamps of forwards and punctuations."""
    return _one(HdrProc)


def papi_punct() -> Topology:
    """Schedules of every kind."""
    return _one(PunctProc)


def papi_interleaved() -> Topology:
    """Two sub-topologies; the one with the later source has the earlier processor and store."""
    counts = Stores.key_value_store_builder(Stores.persistent_key_value_store("cnt"), S, L).with_caching_enabled()
    seen = Stores.key_value_store_builder(Stores.persistent_key_value_store("seen"), S, S).with_caching_enabled()
    return (
        Topology()
        .add_source("s1", "in1")
        .add_source("s2", "in2")
        .add_processor("counter", KvCounter, "s2")
        .add_state_store(counts, "counter")
        .add_sink("k2", "out2", "counter")
        .add_processor("punct", PunctProc, "s1")
        .add_processor("dedup", Dedup, "punct")
        .add_state_store(seen, "dedup")
        .add_sink("k1", "out1", "dedup")
    )


def papi_session_store() -> Topology:
    """A session store."""
    return _one(SessProc, Stores.session_store_builder(Stores.persistent_session_store("ss", 500), S, S))


TOPOLOGIES: dict[str, Callable[[], Topology]] = {
    builder.__name__: builder
    for builder in (
        papi_kv,
        papi_kv_cached,
        papi_fanout,
        papi_window_store,
        papi_window_dups,
        papi_range,
        papi_versioned,
        papi_global_store,
        papi_headers,
        papi_punct,
        papi_session_store,
        papi_interleaved,
    )
}
