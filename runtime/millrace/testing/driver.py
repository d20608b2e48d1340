"""`TopologyTestDriver`: a topology run in a test, without a broker, on the engine that production runs.

As in Kafka Streams' driver the whole topology is one task over one partition of each topic, everything happens before `pipe`
returns, the wall clock moves only when told to, and each processed record is followed by stream-time punctuation and a commit.
Records sent to a topic that the topology also reads, such as a repartition topic, are read back immediately.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from millrace.checks import (
    MAX_TIMESTAMP,
    Suggesting,
    did_you_mean,
    instance,
    located,
    mistake,
    placed,
    serdes,
    timestamp_ms,
    users_call,
)
from millrace.config import FINAL_RESULTS_INTERVAL, OUTER_JOIN_INTERVAL, StreamsConfig
from millrace.dropped_records import DroppedRecords
from millrace.durations import Duration, to_millis
from millrace.engine.global_task import GlobalStateTask
from millrace.engine.task import StreamTask
from millrace.engine.task_metrics import TASK_GROUP, MetricName, task_metrics
from millrace.engine.task_state import TaskState
from millrace.errors import ConfigError, InvalidStateStoreError, TopologyError
from millrace.java_collections import hash_order
from millrace.records import NO_HEADERS, ConsumedRecord, Headers, TaskId, TopicPartition
from millrace.serdes.base import AnySerde, Serde
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.state.api import StateStore
from millrace.state.cache import RecordCache
from millrace.state.versioned import VersionedKeyValueStore
from millrace.testing.output_collector import CapturingCollector, ProducedRecord
from millrace.testing.topics import TestInputTopic, TestOutputTopic
from millrace.topology.physical_topology import BuiltTopology, ProcessorNode, Subtopology
from millrace.topology.topology import Topology

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_PARTITION = 0
_NO_THROTTLE = {FINAL_RESULTS_INTERVAL: 0, OUTER_JOIN_INTERVAL: 0}
"""Results are sent as soon as they are due, unless the settings say otherwise: the wall clock stands still in tests."""


class TopologyTestDriver(Suggesting):
    """Runs a topology record by record.

    Args:
        topology: what to run.
        config: settings, by Kafka's names; `application.id` defaults to `test`.
        initial_wall_clock_ms: where the driver's wall clock starts; only `advance_wall_clock_time` moves it.
        auto_commit: commit after every record, like Kafka's driver; with False only `commit` does, which shows what record
            caches hold back.

    Example:
        >>> from millrace.serdes import Serdes
        >>> from millrace.topology import Topology
        >>> topology = Topology().add_source("lines", "in").add_sink("copy", "out", "lines")
        >>> config = {"default.key.serde": "string", "default.value.serde": "string"}
        >>> with TopologyTestDriver(topology, config) as driver:
        ...     driver.create_input_topic("in").pipe_input("k", "hello", timestamp=5)
        ...     driver.create_output_topic("out").read_record()
        Record(key='k', value='hello', timestamp=5, headers=())
    """

    __test__ = False

    def __init__(
        self,
        topology: Topology,
        config: Mapping[str, object] | StreamsConfig | None = None,
        *,
        initial_wall_clock_ms: int = 0,
        auto_commit: bool = True,
    ) -> None:
        instance(topology, "topology", Topology, "a Topology", "call build() of the StreamsBuilder")
        instance(config or {}, "config", (Mapping, StreamsConfig), "a mapping of settings or a StreamsConfig")
        settings = config if isinstance(config, StreamsConfig) else {"application.id": "test", **(config or {})}
        given = StreamsConfig.of(settings)
        self.config = given.model_copy(update={"client_settings": {**_NO_THROTTLE, **given.client_settings}})
        self._now_ms = timestamp_ms(initial_wall_clock_ms, lambda: "initial_wall_clock_ms")
        self._auto_commit = auto_commit
        self._directory = Path(tempfile.mkdtemp(prefix="millrace-test-"))
        self._offsets: dict[str, int] = {}
        self._outputs: dict[str, deque[ProducedRecord]] = {}
        self._produced: list[ProducedRecord] | None = None
        self._topics_produced: set[str] = set()
        self._global: GlobalStateTask | None = None
        self._task: StreamTask | None = None
        try:
            with placed(users_call().place):
                self._start(topology)
        except BaseException:
            self.abandon()
            raise

    def _start(self, topology: Topology) -> None:
        built, dropped = topology.build(self.config), DroppedRecords()
        global_stores: Mapping[str, StateStore] = {}
        self._global_topics: frozenset[str] = frozenset()
        if built.global_subtopology is not None:
            self._global_topics = frozenset(built.global_subtopology.source_topics)
            self._global = GlobalStateTask(
                built.global_subtopology,
                self.config,
                state_dir=self._directory / "global",
                clock=self._clock,
                dropped=dropped,
            )
            self._global.open_stores()
            self._global.initialize()
            global_stores = self._global.stores
        self._collector = CapturingCollector()
        subtopology = _merge_subtopologies(built)
        self._patterns = subtopology.source_patterns
        self._input_topics = set(subtopology.source_topics)
        cache_bytes = self.config.statestore_cache_max_bytes
        self._task = task = StreamTask(
            TaskId(0, _PARTITION),
            subtopology,
            self.config,
            self._collector,
            state_dir=self._directory / f"0_{_PARTITION}",
            cache=RecordCache(cache_bytes) if cache_bytes else None,
            clock=self._clock,
            input_partitions=frozenset(TopicPartition(topic, _PARTITION) for topic in subtopology.source_topics),
            global_stores=global_stores,
            dropped=dropped,
        )
        task.open_stores()
        task.initialize()
        for partition in task.input_partitions:
            task.set_lag(partition, 0)
        self._capture()

    # Topics

    def create_input_topic(
        self,
        name: str,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        *,
        start_timestamp_ms: int | None = None,
        auto_advance_ms: Duration = 0,
    ) -> TestInputTopic[K, V]:
        """Return an input topic.

        Args:
            name: a topic the topology reads.
            key_serde: None for `default.key.serde`.
            value_serde: None for `default.value.serde`.
            start_timestamp_ms: of the first record piped without a timestamp; None for the driver's wall clock.
            auto_advance_ms: how far each such record advances the timestamp of the next one.

        Raises:
            TopologyError: the topology does not read that topic.
        """
        if name not in self._input_topics | self._global_topics and not any(p.fullmatch(name) for p in self._patterns):
            raise self._not_read(name)
        return TestInputTopic(
            name,
            self._serde(key_serde, "key"),
            self._serde(value_serde, "value"),
            self.pipe_raw,
            start_ms=self._now_ms if start_timestamp_ms is None else start_timestamp_ms,
            auto_advance_ms=auto_advance_ms,
        )

    def create_output_topic(
        self, name: str, key_serde: Serde[K] | None = None, value_serde: Serde[V] | None = None
    ) -> TestOutputTopic[K, V]:
        """Return an output topic; it may also be a changelog or repartition topic, by its full name."""
        return TestOutputTopic(
            name,
            self._serde(key_serde, "key"),
            self._serde(value_serde, "value"),
            self._outputs.setdefault(name, deque()),
            self._clock,
        )

    def produced_topic_names(self) -> frozenset[str]:
        """Return the topics to which something was sent, internal ones included."""
        return frozenset(self._topics_produced)

    # Bytes in, bytes out

    def pipe_raw(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Iterable[tuple[str, bytes | None]] = NO_HEADERS,
    ) -> None:
        """Process one record given in bytes, and everything that follows from it.

        Raises:
            TopologyError: the topology does not read that topic.
        """
        if self.enqueue(topic, key, value, timestamp, headers):
            self.drain()

    def enqueue(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Iterable[tuple[str, bytes | None]] = NO_HEADERS,
    ) -> bool:
        """Buffer one record without processing it; return whether a task will process it (global stores apply it immediately)."""
        record = self._consumed(topic, key, value, timestamp, Headers(headers))
        buffered = self._reads(topic)
        if buffered:
            self._running_task().add_records(TopicPartition(topic, _PARTITION), [record])
        if topic in self._global_topics:
            self._update_global(record)
        elif not buffered:
            raise self._not_read(topic)
        return buffered

    def drain(self) -> None:
        """Process what is buffered, in the order that a task chooses, and everything that follows from it."""
        task = self._running_task()
        self._capture()
        more = True
        try:
            while more:  # a dropped record does not count as processed, but may have sent a dead letter
                processed = task.process(self._now_ms, 1)
                task.punctuate_stream_time()
                if self._auto_commit:
                    self._commit()
                more = self._capture() or processed > 0
        except Exception:
            self._capture()  # what the failed record has already sent
            raise

    def record_produced(self) -> list[ProducedRecord]:
        """Start to collect every record that is sent, to any topic, in a list; return that live list."""
        if self._produced is None:
            self._produced = []
        return self._produced

    # Time and commits

    @property
    def wall_clock_ms(self) -> int:
        """The driver's wall clock."""
        return self._now_ms

    def advance_wall_clock_time(self, by_ms: Duration) -> None:
        """Move the wall clock and call the punctuators that become due."""
        self._now_ms += to_millis(by_ms, "What the wall clock is advanced by", minimum=None)
        task = self._running_task()
        try:
            task.punctuate_wall_clock(self._now_ms)
            if self._auto_commit:
                self._commit()
        finally:
            self._capture()
        self.drain()

    def commit(self) -> None:
        """Commit now: flush record caches and buffers, and process what they send."""
        try:
            self._commit()
        finally:
            self._capture()
        self.drain()

    # Stores

    def get_state_store(self, name: str) -> Any:
        """Return a store, local or global, or None if the topology has no store of that name."""
        task = self._running_task()
        found = task.stores.get(name)
        return self._global.stores.get(name) if found is None and self._global is not None else found

    def get_all_state_stores(self) -> dict[str, StateStore]:
        """Return every store by name."""
        stores = dict(self._running_task().stores)
        if self._global is not None:
            stores.update(self._global.stores)
        return stores

    def get_key_value_store(self, name: str) -> Any:
        """Return a key-value store (plain, timestamped or with headers).

        Raises:
            InvalidStateStoreError: there is no store of that name, or it is of another kind.
        """
        return self._store_with(name, "key-value", lambda store: hasattr(store, "get") and hasattr(store, "range"))

    def get_window_store(self, name: str) -> Any:
        """Return a window store."""
        return self._store_with(name, "window", lambda store: hasattr(store, "fetch_all"))

    def get_session_store(self, name: str) -> Any:
        """Return a session store."""
        return self._store_with(name, "session", lambda store: hasattr(store, "find_sessions"))

    def get_versioned_key_value_store(self, name: str) -> Any:
        """Return a versioned key-value store.

        Raises:
            InvalidStateStoreError: there is no store of that name, or it is of another kind, such as a plain key-value store.
        """
        return self._store_with(name, "versioned", lambda store: isinstance(store, VersionedKeyValueStore))

    # Looking inside

    @property
    def task(self) -> StreamTask:
        """The task that runs the topology."""
        return self._running_task()

    @property
    def dropped_records(self) -> int:
        """Records dropped so far (`dropped-records-total`), including global stores."""
        of_global_stores = 0 if self._global is None else self._global.counters.dropped_records
        return self._running_task().counters.dropped_records + of_global_stores

    def metrics(self) -> Mapping[MetricName, float]:
        """Return the totals of the task and its nodes, by group, name and node (None for the task's own).

        Example:
            >>> from millrace.topology import Topology
            >>> topology = Topology().add_source("lines", "in").add_sink("copy", "out", "lines")
            >>> config = {"default.key.serde": "string", "default.value.serde": "string"}
            >>> with TopologyTestDriver(topology, config) as driver:
            ...     driver.create_input_topic("in").pipe_input("k", "hello")
            ...     driver.metrics()["stream-task-metrics", "process-total", None]
            1
        """
        return {
            **task_metrics(self._running_task()),
            MetricName(TASK_GROUP, "dropped-records-total"): self.dropped_records,
        }

    # The end

    def close(self) -> None:
        """Commit, close stores and processors, and delete the state directory."""
        task, self._task = self._task, None
        global_task, self._global = self._global, None
        try:
            if task is not None and task.state is TaskState.RUNNING:
                task.suspend()
                task.prepare_commit()
                task.post_commit(self._collector.changelog_offsets())
                task.close_clean()
            if global_task is not None:
                global_task.close()
        finally:
            if task is not None:
                task.close_dirty()
            shutil.rmtree(self._directory, ignore_errors=True)

    def abandon(self) -> None:
        """Close without committing, as after a failure."""
        task, self._task = self._task, None
        global_task, self._global = self._global, None
        if task is not None:
            task.close_dirty()
        if global_task is not None:
            global_task.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def __repr__(self) -> str:
        if self._task is None:
            return "<TopologyTestDriver, closed>"
        waiting = ", ".join(f"{name} ({len(queue)})" for name, queue in sorted(self._outputs.items()) if queue)
        return (
            f"<TopologyTestDriver of {self.config.application_id}: wall clock {self._now_ms} ms, stream time "
            f"{self._task.stream_time} ms, stores {', '.join(self.get_all_state_stores()) or 'none'}, "
            f"to read: {waiting or 'nothing'}>"
        )

    # Inside

    def _clock(self) -> int:
        return self._now_ms

    def _serde(self, serde: AnySerde | None, which: str) -> AnySerde:
        serdes(**{f"{which}_serde": serde})
        if serde is not None:
            return serde
        default = default_key_serde(self.config) if which == "key" else default_value_serde(self.config)
        if default is None:
            raise ConfigError(located(f"Give the topic a {which} serde, or set default.{which}.serde"))
        return default

    def _not_read(self, topic: str) -> TopologyError:
        known = sorted(self._input_topics | self._global_topics)
        told = f"The topology does not read topic {topic!r}; its input topics: {', '.join(known) or 'none'}"
        return mistake(told + did_you_mean(topic, known))

    def _reads(self, topic: str) -> bool:
        if topic in self._input_topics:
            return True
        if any(pattern.fullmatch(topic) for pattern in self._patterns):
            task = self._running_task()
            partition = TopicPartition(topic, _PARTITION)
            self._input_topics.add(topic)
            task.update_input_partitions(task.input_partitions | {partition})
            task.set_lag(partition, 0)
            return True
        return False

    def _consumed(
        self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers
    ) -> ConsumedRecord:
        timestamp = timestamp_ms(timestamp, lambda: f"The timestamp of a record for topic {topic}", -MAX_TIMESTAMP - 1)
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        return ConsumedRecord(topic, _PARTITION, offset, timestamp, key, value, headers)

    def _capture(self) -> bool:
        """Distribute what was sent, and read back what went to input topics; return whether anything was sent."""
        anything = False
        while sent := self._collector.take():
            anything = True
            if self._produced is not None:
                self._produced.extend(sent)
            for produced in sent:
                topic = produced.topic
                self._topics_produced.add(topic)
                self._outputs.setdefault(topic, deque()).append(produced)
                if self._reads(topic) or topic in self._global_topics:
                    timestamp = self._now_ms if produced.timestamp is None else produced.timestamp
                    self.enqueue(topic, produced.key, produced.value, timestamp, produced.headers)
        return anything

    def _commit(self) -> None:
        task = self._running_task()
        if task.commit_needed:
            task.prepare_commit()
            task.post_commit(self._collector.changelog_offsets())

    def _update_global(self, record: ConsumedRecord) -> None:
        assert self._global is not None
        self._global.update(TopicPartition(record.topic, _PARTITION), [record])

    def _store_with(self, name: str, kind: str, is_of_kind: Callable[[StateStore], bool]) -> Any:
        store = self.get_state_store(name)
        if store is None:
            stores = ", ".join(self.get_all_state_stores()) or "none"
            raise InvalidStateStoreError(located(f"There is no store {name!r}; the topology's stores: {stores}"))
        if not is_of_kind(store):
            raise InvalidStateStoreError(located(f"Store {name!r} is a {type(store).__name__}, not a {kind} store"))
        return store

    def _running_task(self) -> StreamTask:
        if self._task is None:
            raise mistake("This test driver is closed")
        return self._task


def _merge_subtopologies(topology: BuiltTopology) -> Subtopology:
    """Return a topology's sub-topologies as one, because the driver runs a whole topology as a single task.

    Nodes are initialised, and stores flushed, in the order in which the nodes were added to the topology. A task in production
    has that order within one sub-topology, this one across all of them, so a commit sends things in the order of Kafka Streams'
    driver.
    """
    subtopologies = topology.subtopologies
    known = {node.name: node for part in subtopologies for node in part.nodes}
    nodes = tuple(known[name] for name in topology.node_names if name in known)
    builders = {builder.name: builder for part in subtopologies for builder in part.store_builders}
    stores = _distinct(name for node in nodes if isinstance(node, ProcessorNode) for name in hash_order(node.stores))
    return Subtopology(
        id=0,
        nodes=nodes,
        store_builders=tuple(builders[name] for name in stores),
        source_topics=_distinct(topic for part in subtopologies for topic in part.source_topics),
        source_patterns=_distinct(pattern for part in subtopologies for pattern in part.source_patterns),
        sink_topics=_distinct(topic for part in subtopologies for topic in part.sink_topics),
        repartition_topics=_union(part.repartition_topics for part in subtopologies),
        changelog_topics=_union(part.changelog_topics for part in subtopologies),
        changelog_configs=_union(part.changelog_configs for part in subtopologies),
        copartition_groups=tuple(group for part in subtopologies for group in part.copartition_groups),
        source_changelogs=frozenset().union(*(part.source_changelogs for part in subtopologies)),
        places=_union(part.places for part in subtopologies),
    )


def _distinct(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def _union(maps: Iterable[Mapping[str, T]]) -> dict[str, T]:
    return {key: value for mapping in maps for key, value in mapping.items()}
