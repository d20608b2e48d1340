"""`MockProcessorContext`: a context for unit tests of one processor, which records the processor's requests."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.checks import timestamp_ms
from millrace.config import StreamsConfig
from millrace.durations import Duration, to_millis
from millrace.errors import ConfigError, TopologyError
from millrace.processor.api import PunctuationType, Punctuator, RecordMetadata
from millrace.records import Record, RecordContext, TaskId
from millrace.serdes.base import AnySerde
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.state.api import StateStore, StoreContext


@dataclass(frozen=True, slots=True)
class CapturedForward:
    """One call of `forward`: the record, and the child it named."""

    record: Record[Any, Any]
    child: str | None = None


@dataclass(slots=True)
class CapturedPunctuator:
    """One call of `schedule`; the test calls `punctuator` itself."""

    interval_ms: int
    type: PunctuationType
    punctuator: Punctuator
    start_ms: int | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """Mark it cancelled."""
        self.cancelled = True


class MockProcessorContext:
    """Stands in for a `ProcessorContext` or `FixedKeyProcessorContext`.

    Example:
        >>> from millrace.processor.api import Processor
        >>> class Upper(Processor):
        ...     def process(self, record):
        ...         self.context.forward(record.with_value(record.value.upper()))
        >>> context, processor = MockProcessorContext(), Upper()
        >>> processor.init(context)
        >>> processor.process(Record("k", "v", 0))
        >>> context.forwarded()[0].record.value
        'V'
    """

    def __init__(
        self,
        config: Mapping[str, object] | StreamsConfig | None = None,
        *,
        task_id: TaskId = TaskId(0, 0),  # noqa: B008 (an immutable value)
        state_dir: Path | None = None,
    ) -> None:
        settings = config if isinstance(config, StreamsConfig) else {"application.id": "test", **(config or {})}
        self.config = StreamsConfig.of(settings)
        self.task_id = task_id
        self.committed = False
        """Whether `commit` was called since `reset_commit`."""
        self.scheduled_punctuators: list[CapturedPunctuator] = []
        self.dropped_records = 0
        self._forwards: list[CapturedForward] = []
        self._stores: dict[str, Any] = {}
        self._record = RecordContext()
        self._state_dir = state_dir
        self._system_time_ms = 0
        self._stream_time_ms = -1

    @property
    def application_id(self) -> str:
        """The application's id."""
        return self.config.application_id

    @property
    def state_dir(self) -> Path:
        """The directory given, or a temporary one created on first use."""
        if self._state_dir is None:
            self._state_dir = Path(tempfile.mkdtemp(prefix="millrace-mock-"))
        return self._state_dir

    @property
    def key_serde(self) -> AnySerde:
        """The default key serde."""
        return _given(default_key_serde(self.config), "key")

    @property
    def value_serde(self) -> AnySerde:
        """The default value serde."""
        return _given(default_value_serde(self.config), "value")

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """What was given to `set_record_metadata`, or None."""
        record = self._record
        return None if record.topic is None else RecordMetadata(record.topic, record.partition, record.offset)

    def set_record_metadata(self, topic: str, partition: int, offset: int) -> None:
        """Set where the record that is processed next comes from."""
        self._record.topic, self._record.partition, self._record.offset = topic, partition, offset

    def set_current_system_time_ms(self, now_ms: int) -> None:
        """Set the wall clock that the processor sees."""
        self._system_time_ms = now_ms

    def set_current_stream_time_ms(self, stream_time_ms: int) -> None:
        """Set the stream time that the processor sees."""
        self._stream_time_ms = stream_time_ms

    def current_system_time_ms(self) -> int:
        """Return the time given to `set_current_system_time_ms`."""
        return self._system_time_ms

    def current_stream_time_ms(self) -> int:
        """Return the time given to `set_current_stream_time_ms`."""
        return self._stream_time_ms

    def add_state_store(self, store: StateStore) -> None:
        """Open a store, without changelog and cache, and make it available to the processor."""
        store.init(self.store_context())
        self._stores[store.name] = store

    def store_context(self) -> StoreContext:
        """Return the context for opening stores."""
        return StoreContext(
            application_id=self.application_id,
            task_id=self.task_id,
            config=self.config,
            state_dir=self.state_dir,
            record=self._record,
            cache=None,
            changelog_topics={},
            send_change=lambda _partition: lambda _key, _value, _timestamp, _headers: None,
            now_ms=self.current_system_time_ms,
            drop_record=lambda *_: self._drop(),
        )

    def get_state_store(self, name: str) -> Any:
        """Return a store added by `add_state_store`."""
        try:
            return self._stores[name]
        except KeyError:
            raise TopologyError(
                f"No store {name!r} was added to this mock context: call add_state_store first"
            ) from None

    def schedule(
        self,
        interval_ms: Duration,
        punctuation_type: PunctuationType,
        callback: Punctuator,
        *,
        start_ms: int | None = None,
    ) -> CapturedPunctuator:
        """Record a schedule; only the test calls the punctuator."""
        millis = to_millis(interval_ms, "The interval of a punctuator", minimum=None)
        if start_ms is not None:
            start_ms = timestamp_ms(start_ms, lambda: "The start of a punctuator")
        captured = CapturedPunctuator(millis, punctuation_type, callback, start_ms)
        self.scheduled_punctuators.append(captured)
        return captured

    def forward(self, record: Record[Any, Any], child: str | None = None) -> None:
        """Record a forward.

        Raises:
            InvalidTimestampError: the timestamp is negative, or no whole number.
        """
        timestamp_ms(record.timestamp, lambda: "The timestamp of a record that is forwarded")
        self._forwards.append(CapturedForward(record, child))

    def forwarded(self, child: str | None = None) -> list[CapturedForward]:
        """Return the forwards so far: all of them, or those that reach one child."""
        return [item for item in self._forwards if child is None or item.child in (None, child)]

    def reset_forwards(self) -> None:
        """Forget the forwards so far."""
        self._forwards.clear()

    def commit(self) -> None:
        """Record that a commit was requested."""
        self.committed = True

    def reset_commit(self) -> None:
        """Forget that a commit was requested."""
        self.committed = False

    def __repr__(self) -> str:
        return (
            f"<MockProcessorContext of task {self.task_id}: {len(self._forwards)} forwards, "
            f"{len(self.scheduled_punctuators)} schedules{', commit asked for' if self.committed else ''}>"
        )

    def _drop(self) -> None:
        self.dropped_records += 1


def _given(serde: AnySerde | None, which: str) -> AnySerde:
    if serde is None:
        raise ConfigError(
            f"The processor needs the default {which} serde: give the context the setting default.{which}.serde"
        )
    return serde
