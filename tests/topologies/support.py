"""Helpers of the golden topologies, under the names their definitions use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millrace.config import StreamsConfig
from millrace.dsl import EmitStrategy, Materialized, Produced, StreamsBuilder
from millrace.serdes import Serdes, SessionWindowedSerde, TimeWindowedSerde
from millrace.topology import Topology

S, L = Serdes.string(), Serdes.long()
CLOSE = EmitStrategy.on_window_close()
DEFAULTS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


def dsl(define: Callable[[StreamsBuilder], None]) -> Callable[[Mapping[str, Any]], Topology]:
    """Return the function that builds a DSL topology for a configuration (the optimiser reads it)."""

    def build(config: Mapping[str, Any]) -> Topology:
        builder = StreamsBuilder()
        define(builder)
        return builder.build(StreamsConfig.of({**DEFAULTS, **config}))

    return build


def text(value: Any) -> str:
    """Render like Java's string concatenation."""
    return "null" if value is None else str(value)


def cat(so_far: Any, value: Any) -> str:
    """Append, keeping the last 16 characters."""
    return (text(so_far) + text(value))[-16:]


def append(_key: Any, value: Any, so_far: Any) -> str:
    """Aggregate by appending."""
    return cat(so_far, value)


def pair(left: Any, right: Any) -> str:
    """Join two values with a slash."""
    return f"{text(left)}/{text(right)}"


def first(value: str | None, otherwise: str | None = "n") -> str | None:
    """Return the first letter, or a placeholder if there is no value."""
    return otherwise if value is None else value[:1]


def kv(name: str) -> Materialized[Any, Any]:
    """Materialise under a name."""
    return Materialized.as_(name)


def longs() -> Produced[Any, Any]:
    """Produce text keys and long values."""
    return Produced.with_(S, L)


def windowed_out(table: Any, size: int, value_serde: Any) -> None:
    """Send a time-windowed table to `out`."""
    table.to_stream().to("out", Produced.with_(TimeWindowedSerde(S, size), value_serde))


def session_out(table: Any, value_serde: Any) -> None:
    """Send a session-windowed table to `out`."""
    table.to_stream().to("out", Produced.with_(SessionWindowedSerde(S), value_serde))
