"""The contract of every state store, and what a store gets from the task that owns it.

It makes two promises. A store that logs its changes sends them to its changelog in the order in which they were made. And
nothing reaches the disk before `commit`: a persistent store keeps its writes in memory, where they can be read at once, and
writes them in one atomic batch with the changelog offsets they correspond to. So after a crash the disk is always at a
committed point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from millrace.config import StreamsConfig
from millrace.dropped_records import DropAt
from millrace.errors import of_thread
from millrace.plan.topology_plan import PlannedWindows
from millrace.records import NO_HEADERS, Headers, RecordContext, TaskId, TopicPartition

LogChange = Callable[[bytes, "bytes | None", "int | None", Headers], None]
"""Sends one change to a store's changelog: key, value (None deletes), timestamp ms (None: the producer stamps), headers."""


class ChangelogRecord(NamedTuple):
    """One record of a changelog as restoration and standbys read it."""

    key: bytes
    value: bytes | None
    timestamp: int
    offset: int
    headers: Headers = NO_HEADERS


V = TypeVar("V")


class ValueTimestampHeaders(NamedTuple, Generic[V]):
    """A value with timestamp (ms) and headers, as header-aware stores hold it (KIP-1271)."""

    value: V
    timestamp: int
    headers: Headers = NO_HEADERS


class DirectAccess(NamedTuple):
    """How operators read and write the same key of a timestamped store, serialising the key only once.

    `raw = key_bytes(topic, key)`, then `get_for_update(raw)`, then `put(raw, (value, timestamp))`. Pairs are plain tuples,
    which cost a tenth of a `ValueAndTimestamp`.
    """

    topic: str
    key_bytes: Callable[[str, Any], Any]
    get: Callable[[Any], tuple[Any, int] | None]
    """Returns (value, timestamp ms), or None."""
    get_for_update: Callable[[Any], tuple[Any, int] | None]
    """The same, if a `put` follows; then the `put` counts as the use of the cached entry."""
    put: Callable[[Any, tuple[Any, int]], int | None]
    """Takes (value, timestamp ms); the value None deletes. Versioned tables return the result of their store, others None."""


class DirectWindowAccess(NamedTuple):
    """The same for timestamped window stores: `window = locate(key_bytes(topic, key), start)`, then `get` and `put`."""

    topic: str
    key_bytes: Callable[[str, Any], bytes]
    locate: Callable[[bytes, int], tuple[bytes, int]]
    get: Callable[[tuple[bytes, int]], tuple[Any, int] | None]
    put: Callable[[tuple[bytes, int], tuple[Any, int]], None]


class CacheBudget(Protocol):
    """The record cache's memory, shared by all caching stores of a stream thread (bytes)."""

    max_bytes: int
    used_bytes: int


@dataclass(slots=True)
class StoreContext:
    """What a task passes to each of its stores in `StateStore.init`."""

    application_id: str
    task_id: TaskId
    config: StreamsConfig
    state_dir: Path
    """The task's own directory, `<state.dir>/<application.id>/<task id>`; stores create their folders below it."""
    record: RecordContext
    """The record being processed, live: read its timestamp and headers when logging a change."""
    cache: CacheBudget | None
    """The thread's record-cache budget; None if caching is off."""
    changelog_topics: Mapping[str, str]
    """Store name → changelog topic, for stores that are logged."""
    send_change: Callable[[TopicPartition], LogChange]
    """Returns the sender for one changelog partition; a store calls it once, in `init`."""
    now_ms: Callable[[], int]
    drop_record: DropAt = field(default=lambda *_: None)
    """Counts one record in the task's `dropped-records` metric (expired window, late version), given the store's name."""
    source_topics: Mapping[str, str] = field(default_factory=dict)
    """Store name → topic that the store is a copy of: its changes are not logged, and it is restored from there."""
    restoring: bool = False
    shared: bool = False
    """Whether other threads read the store while its own thread writes and commits it, as with global stores."""

    def topic_of(self, store_name: str) -> str:
        """Return the topic that the store's serdes are told: what the store is a copy of, or its changelog.

        For a store that is not logged it is the name that the changelog would have.
        """
        return self.rows_topic(store_name) or f"{self.application_id}-{store_name}-changelog"

    def rows_topic(self, store_name: str) -> str | None:
        """Return the topic that has the store's rows, or None."""
        return self.source_topics.get(store_name) or self.changelog_topics.get(store_name)

    def changelog_partition(self, store_name: str) -> TopicPartition | None:
        """Return the store's changelog partition, or None when it is not logged."""
        topic = self.changelog_topics.get(store_name)
        return None if topic is None else TopicPartition(topic, self.task_id.partition)


@runtime_checkable
class StateStore(Protocol):
    """A store as its task sees it (KIP-1035: offsets live in the store).

    Implement it for your own store; which methods processors call is up to you. Its life cycle: `init`; `restore`, as
    often as needed, with the records of the changelog after `committed_offset`; then writes, each of which the store logs
    itself; at every commit `flush`, and `commit` with the offset of the last record that it logged, if any; finally `close`.
    After a failure, `close` is called without a commit, and everything written since the last one must be gone when the next
    object opens the same directory. A persistent store records the offsets of restored records itself. A store in memory is not
    persistent, and each new object is restored from the beginning of the changelog.

    Example:
        >>> from millrace import Processor, Topology, TopologyTestDriver
        >>> from millrace.state import StoreBuilderBase
        >>> class Tally:
        ...     persistent = False
        ...     def __init__(self, name):
        ...         self.name, self.counts, self.offsets, self.opened = name, {}, {}, False
        ...     def init(self, context):
        ...         partition = context.changelog_partition(self.name)
        ...         self.log = None if partition is None else context.send_change(partition)
        ...         self.record, self.opened = context.record, True
        ...     def add(self, key):
        ...         self.counts[key] = self.counts.get(key, 0) + 1
        ...         if self.log is not None:
        ...             self.log(key.encode(), b"%d" % self.counts[key], self.record.timestamp, NO_HEADERS)
        ...     def restore(self, records):
        ...         self.counts.update((record.key.decode(), int(record.value)) for record in records)
        ...     def flush(self):
        ...         pass
        ...     def commit(self, offsets):
        ...         self.offsets.update(offsets)
        ...     def committed_offset(self, partition):
        ...         return self.offsets.get(partition)
        ...     def uncommitted_bytes(self):
        ...         return 0
        ...     def is_open(self):
        ...         return self.opened
        ...     def close(self):
        ...         self.opened = False
        >>> class TallyBuilder(StoreBuilderBase):
        ...     def build(self):
        ...         return Tally(self.name)
        >>> class Count(Processor):
        ...     def process(self, record):
        ...         self.context.get_state_store("tally").add(record.key)
        >>> topology = Topology().add_source("in", "in").add_processor("count", Count, "in")
        >>> topology = topology.add_state_store(TallyBuilder("tally"), "count")
        >>> config = {"default.key.serde": "string", "default.value.serde": "string"}
        >>> with TopologyTestDriver(topology, config) as driver:
        ...     driver.create_input_topic("in").pipe_list([("a", "x"), ("b", "x"), ("a", "x")])
        ...     driver.get_state_store("tally").counts
        {'a': 2, 'b': 1}
    """

    name: str
    persistent: bool

    def init(self, context: StoreContext) -> None:
        """Open the store; called once, before restoration and before any node runs.

        Raises:
            StateDirectoryError: the directory is read-only or full, or the database is open in another process.
            TaskCorruptedError: the files do not match what was recorded.
        """

    def flush(self) -> None:
        """Write dirty record-cache entries through to the changelog and forward them downstream."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write all changes so far to disk, in one atomic batch with the offsets of the changelog records they produced.

        The offset is that of the last applied record; without an entry in `offsets`, a store keeps the offset it has.
        """

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the changelog offset of the last record on disk, or None if it is unknown."""

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Apply changelog records (not logged again, not cached)."""

    def uncommitted_bytes(self) -> int:
        """Return the approximate memory held by writes that wait for `commit`."""

    def is_open(self) -> bool:
        """Tell whether the store can be read and written."""

    def close(self) -> None:
        """Release everything. Uncommitted writes are lost."""


class StoreBuilder(Protocol):
    """Builds one store per task, and tells the topology what it needs; derive builders from `builders.StoreBuilderBase`."""

    name: str
    logging_enabled: bool
    caching_enabled: bool
    log_config: Mapping[str, str]

    @property
    def kind(self) -> str:
        """One of `key-value`, `window`, `session`, `versioned`, `buffer`, or `list`."""

    @property
    def retention_ms(self) -> int | None:
        """How long windows, sessions or history are kept; None for key-value stores."""

    @property
    def windows(self) -> PlannedWindows | None:
        """The windows by which an operator of the DSL uses the store."""

    @property
    def retain_duplicates(self) -> bool:
        """Whether a window store keeps every record of a key and time."""

    @property
    def persistent(self) -> bool:
        """Whether the store survives a restart."""

    @property
    def value_format(self) -> str:
        """`plain`, `timestamped` or `headers` (formats §2)."""

    def build(self) -> StateStore:
        """Return a new store; called once per task."""


FlushListener = Callable[[Any, tuple[Any, Any, bool], int, Headers], None]
"""Called for each dirty cache entry on flush, like a node: key, (new value, old value, True), timestamp ms, headers.

The old value is None unless requested.
"""


@runtime_checkable
class CachedStateStore(Protocol):
    """A store that may have a record cache in front of it."""

    @property
    def cached(self) -> bool:
        """Whether writes are held back by the record cache; known after `init`."""

    def set_flush_listener(self, listener: FlushListener, *, send_old_values: bool) -> bool:
        """Have flushed updates forwarded; return False if the store is not cached, so that the node must forward them itself."""


def close_all(stores: Iterable[StateStore]) -> None:
    """Close all stores, and raise the first failure after trying all of them."""
    call_all(store.close for store in stores)


def call_all(calls: Iterable[Callable[[], object]]) -> None:
    """Call all functions, even after one has failed, and then raise the first failure.

    They may be the user's: `sys.exit()` in one is a failure as any other, which callers expect.
    """
    failure: Exception | None = None
    for call in calls:
        try:
            call()
        except BaseException as error:
            failure = failure or of_thread(error)
    if failure is not None:
        raise failure
