"""The `NodeContext` of one node of one task, which it is given when it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from millrace.config import StreamsConfig
from millrace.dropped_records import DropAt, DropRecord
from millrace.engine.error_handling import ErrorHandling
from millrace.engine.record_collector_protocol import RecordCollector
from millrace.engine.task_state import TaskTimes
from millrace.errors import FailedProcessingError, StreamsError, TopologyError
from millrace.processor.api import Cancellable, PunctuationType, Punctuator
from millrace.processor.node import ProcessFn
from millrace.records import Headers, RecordContext, TaskId
from millrace.serdes.base import AnySerde
from millrace.state.api import StateStore

ScheduleFn = Callable[[str, int, PunctuationType, Punctuator, "int | None"], Cancellable]


@dataclass(slots=True)
class CompileEnv:
    """What all nodes of one task share."""

    task_id: TaskId
    config: StreamsConfig
    state_dir: Path
    record: RecordContext
    times: TaskTimes
    collector: RecordCollector | None
    """None for global tasks, which have no producer."""
    failures: ErrorHandling
    stores: Mapping[str, StateStore]
    global_stores: Mapping[str, StateStore]
    schedule: ScheduleFn
    drop_record: DropAt
    request_commit: Callable[[], None]
    default_key_serde: AnySerde | None
    default_value_serde: AnySerde | None
    metadata: dict[str, int] = field(default_factory=dict)
    """The current processor metadata, committed with the offsets."""
    sensors: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    """(node, sensor) → (number of events, sum)."""


class NodeRuntime:
    """The `NodeContext` of one node."""

    __slots__ = (
        "_close",
        "_env",
        "_init",
        "_store_names",
        "children",
        "config",
        "default_key_serde",
        "default_value_serde",
        "drop_record",
        "forward",
        "metadata",
        "name",
        "processing_failed",
        "record",
        "request_commit",
        "state_dir",
        "stream_time",
        "system_time",
        "task_id",
    )

    def __init__(
        self,
        name: str,
        env: CompileEnv,
        store_names: tuple[str, ...],
        forward: ProcessFn,
        children: Mapping[str, ProcessFn],
    ) -> None:
        times, failures = env.times, env.failures

        def processing_failed(error: Exception, key: object, value: object, timestamp: int, headers: Headers) -> None:
            failures.processing_failed(name, error, key, value, timestamp, headers)

        self._env = env
        self._store_names = frozenset(store_names)
        self._init: list[Callable[[], None]] = []
        self._close: list[Callable[[], None]] = []
        self.name = name
        self.task_id = env.task_id
        self.config = env.config
        self.state_dir = env.state_dir
        self.record = env.record
        self.forward = forward
        self.children: Mapping[str, ProcessFn] = MappingProxyType(dict(children))
        self.processing_failed: Callable[[Exception, object, object, int, Headers], None] = processing_failed
        self.drop_record: DropRecord = partial(env.drop_record, name)
        self.stream_time: Callable[[], int] = lambda: times.stream_time
        self.system_time: Callable[[], int] = lambda: times.system_time
        self.request_commit = env.request_commit
        self.default_key_serde = env.default_key_serde
        self.default_value_serde = env.default_value_serde
        self.metadata = env.metadata

    def __repr__(self) -> str:
        return f"<node {self.name} of task {self.task_id}>"

    def state_store(self, name: str) -> Any:
        """Return a store connected to this node, or a global store."""
        if name in self._store_names and name in self._env.stores:
            return self._env.stores[name]
        if name in self._env.global_stores:
            return self._env.global_stores[name]
        if name in self._env.stores:
            raise TopologyError(
                f"Node {self.name} asks for store {name!r} but is not connected to it: add the node's name in "
                "Topology.add_state_store or connect_processor_and_state_stores, or name the store in process(…)"
            )
        raise TopologyError(
            f"Node {self.name} asks for store {name!r}, which its sub-topology does not have; "
            f"connected to it: {', '.join(sorted(self._store_names)) or 'none'}"
        )

    def schedule(
        self, interval_ms: int, punctuation_type: PunctuationType, callback: Punctuator, *, start_ms: int | None = None
    ) -> Cancellable:
        """Register a punctuator."""
        return self._env.schedule(self.name, interval_ms, punctuation_type, callback, start_ms)

    def on_init(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the task starts, stores being open."""
        self._init.append(callback)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the task closes, stores being open."""
        self._close.append(callback)

    def sensor(self, name: str, amount: float = 1.0) -> None:
        """Count an event of this node and add its amount."""
        count, total = self._env.sensors.get((self.name, name), (0, 0.0))
        self._env.sensors[(self.name, name)] = (count + 1, total + amount)

    def run_init(self) -> None:
        """Run the callbacks that the node's factory registered for the start.

        Raises:
            FailedProcessingError: the user's code raised in one.
        """
        try:
            for callback in self._init:
                callback()
        except StreamsError:
            raise
        except Exception as error:
            raise FailedProcessingError(
                f"Task {self.task_id}: node {self.name} failed when it was initialised: {type(error).__name__}: {error}"
            ) from error

    def run_close(self) -> None:
        """Run the callbacks that the node's factory registered for the end."""
        for callback in self._close:
            callback()
