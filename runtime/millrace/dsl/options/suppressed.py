"""`Suppressed` and `BufferConfig`: how updates of a table are held back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millrace.checks import Suggesting, instance, mistake, whole
from millrace.dsl.options.named import WithName, name_of
from millrace.durations import Duration, to_millis


@dataclass(frozen=True, slots=True)
class BufferConfig(Suggesting):
    """How much is held back at most, and what happens when the limit is reached."""

    record_limit: int | None = None
    byte_limit: int | None = None
    shuts_down: bool = False
    logging_enabled: bool = True
    log_config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, given in (("record_limit", self.record_limit), ("byte_limit", self.byte_limit)):
            if given is None:
                continue
            limit = whole(given, "limit", "an int")
            if limit < 0:
                raise mistake(f"A limit of a suppression buffer must not be negative, but is {limit}")
            object.__setattr__(self, name, limit)

    @classmethod
    def max_records(cls, limit: int) -> BufferConfig:
        """Hold at most this many keys; emit the oldest early when there are more."""
        return cls(record_limit=limit)

    @classmethod
    def max_bytes(cls, limit: int) -> BufferConfig:
        """Hold at most this many bytes; emit the oldest early when there are more."""
        return cls(byte_limit=limit)

    @classmethod
    def unbounded(cls) -> BufferConfig:
        """Hold everything; there is no limit."""
        return cls(shuts_down=True)

    def with_max_records(self, limit: int) -> BufferConfig:
        """Hold at most this many keys."""
        return replace(self, record_limit=limit)

    def with_max_bytes(self, limit: int) -> BufferConfig:
        """Hold at most this many bytes."""
        return replace(self, byte_limit=limit)

    def with_no_bound(self) -> BufferConfig:
        """Hold everything; there is no limit."""
        return replace(self, record_limit=None, byte_limit=None, shuts_down=True)

    def emit_early_when_full(self) -> BufferConfig:
        """Emit the oldest updates when the buffer is full."""
        return replace(self, shuts_down=False)

    def shut_down_when_full(self) -> BufferConfig:
        """Fail the task when the buffer is full."""
        return replace(self, shuts_down=True)

    def with_logging_enabled(self, config: Mapping[str, str] | None = None) -> BufferConfig:
        """Log the buffer to a topic with these settings."""
        return replace(self, logging_enabled=True, log_config=dict(config or {}))

    def with_logging_disabled(self) -> BufferConfig:
        """Do not log the buffer: its content is lost when the task moves."""
        return replace(self, logging_enabled=False, log_config={})

    @property
    def is_strict(self) -> bool:
        """Whether no update is ever emitted early."""
        return self.shuts_down


@dataclass(frozen=True, slots=True)
class Suppressed(Suggesting, WithName):
    """How long updates are held back."""

    wait_ms: int | None = None
    """Time after the first update of a key; None: until its window closes."""
    buffer: BufferConfig = field(default_factory=BufferConfig.unbounded)
    name: str | None = None
    """Of the node; its store is `<name>-store`."""

    def __post_init__(self) -> None:
        instance(self.buffer, "buffer", BufferConfig, "a BufferConfig", "write BufferConfig.unbounded() for example")
        name_of(self.name)

    @classmethod
    def until_time_limit(cls, wait: Duration, buffer: BufferConfig) -> Suppressed:
        """Emit only the latest update of a key, when this much stream time has passed since the first one.

        Raises:
            TopologyError: the time is negative.
        """
        return cls(to_millis(wait, "The time to suppress"), buffer)

    @classmethod
    def until_window_closes(cls, buffer: BufferConfig) -> Suppressed:
        """Emit exactly one final result per window.

        Raises:
            TopologyError: the buffer may emit early, so results would not be final.
        """
        if isinstance(buffer, BufferConfig) and not buffer.is_strict:
            raise mistake(
                "until_window_closes needs a buffer that never emits early: use BufferConfig.unbounded(), or "
                "shut_down_when_full()"
            )
        return cls(None, buffer)
