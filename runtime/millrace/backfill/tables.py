"""The final tables of a topology as Parquet: a folder per store, so that the same program serves the warehouse.

Keys and values become columns of Spark's types where the serdes are of the simple ones, and stay binary otherwise. JSON stays
text, which Spark can take apart. A window or session adds two columns, its start and its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from millrace.config import StreamsConfig
from millrace.serdes import Serdes
from millrace.serdes.json import JsonSerde, PydanticSerde
from millrace.serdes.primitives import (
    BooleanSerde,
    DoubleSerde,
    FloatSerde,
    IntegerSerde,
    LongSerde,
    ShortSerde,
    StringSerde,
    UUIDSerde,
)
from millrace.state.builders import LayeredStoreBuilder, VersionedKeyValueStoreBuilder, WindowStoreBuilder
from millrace.state.keys import decode_session_key, decode_window_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millrace.backfill.job import Computed
    from millrace.serdes.base import AnySerde
    from millrace.state.api import StoreBuilder
    from millrace.topology import Topology

__all__ = ["write_tables"]

_TYPES: Final[Mapping[type, tuple[str, pa.DataType]]] = {
    StringSerde: ("string", pa.string()),
    ShortSerde: ("bigint", pa.int64()),
    IntegerSerde: ("bigint", pa.int64()),
    LongSerde: ("bigint", pa.int64()),
    FloatSerde: ("double", pa.float64()),
    DoubleSerde: ("double", pa.float64()),
    BooleanSerde: ("boolean", pa.bool_()),
    UUIDSerde: ("string", pa.string()),
    JsonSerde: ("string", pa.string()),
    PydanticSerde: ("string", pa.string()),
}
_BINARY: Final = ("binary", pa.binary())
_TEXT: Final = (JsonSerde, PydanticSerde)


def write_tables(
    topology: Callable[[], Topology],
    settings: Mapping[str, object],
    computed: Computed,
    folder: str,
) -> None:
    """Write each store that has a changelog; what a folder had before is replaced.

    Args:
        topology: pickled into the executors.
        settings: the application's.
        computed: what to write.
        folder: any path that Spark can write to; a folder per store is made there.
    """
    for store, topic in _logged(topology, settings).items():
        decode = _Decode(topology, settings, store, topic)
        rows = computed.records(topic).select("key", "value", "timestamp")
        table = rows.mapInArrow(decode, decode.columns().ddl)
        table.withColumn("timestamp", F.timestamp_millis("timestamp")).write.mode("overwrite").parquet(
            f"{folder.rstrip('/')}/{store}"
        )


def _logged(topology: Callable[[], Topology], settings: Mapping[str, object]) -> dict[str, str]:
    built = topology().build(StreamsConfig.of(settings))
    return {
        store: topic
        for item in built.subtopologies
        for store, topic in item.changelog_topics.items()
        if store not in item.source_changelogs
    }


@dataclass(frozen=True, slots=True)
class _Columns:
    """How the changelog records of a store become columns."""

    kind: str
    key: AnySerde | None
    value: AnySerde | None
    window_size_ms: int

    @property
    def ddl(self) -> str:
        """The columns and their types in Spark's notation."""
        window = "window_start bigint, window_end bigint, " if self.kind in {"window", "session"} else ""
        return f"key {_type(self.key)[0]}, {window}value {_type(self.value)[0]}, timestamp bigint"


class _Decode:
    """Turns changelog records of one store into a table, in an executor."""

    def __init__(
        self, topology: Callable[[], Topology], settings: Mapping[str, object], store: str, topic: str
    ) -> None:
        self._topology = topology
        self._settings = settings
        self._store = store
        self._topic = topic

    def columns(self) -> _Columns:
        config = StreamsConfig.of(self._settings)
        built = self._topology().build(config)
        builder = next(b for item in built.subtopologies for b in item.store_builders if b.name == self._store)
        return _columns(builder, config)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = self.columns()
        for batch in batches:
            keys, starts, ends = _split(batch.column("key").to_pylist(), columns)
            arrays = {"key": _decoded(keys, columns.key, self._topic)}
            if columns.kind in {"window", "session"}:
                arrays |= {"window_start": pa.array(starts, pa.int64()), "window_end": pa.array(ends, pa.int64())}
            arrays["value"] = _decoded(batch.column("value").to_pylist(), columns.value, self._topic)
            arrays["timestamp"] = batch.column("timestamp")
            yield pa.RecordBatch.from_pydict(arrays)


def _columns(builder: StoreBuilder, config: StreamsConfig) -> _Columns:
    if not isinstance(builder, (LayeredStoreBuilder, VersionedKeyValueStoreBuilder)):
        return _Columns(builder.kind, None, None, 0)
    key = Serdes.default_key(config) if builder.key_serde is None else builder.key_serde
    value = Serdes.default_value(config) if builder.value_serde is None else builder.value_serde
    size = builder.window_size_ms if isinstance(builder, WindowStoreBuilder) else 0
    return _Columns(builder.kind, key, value, size)


def _split(keys: list[bytes], columns: _Columns) -> tuple[Sequence[bytes], list[int], list[int]]:
    """Return the keys of changelog records without their windows, and these."""
    if columns.kind == "window":
        windows = [decode_window_key(key) for key in keys]
        return (
            [key for key, *_ in windows],
            [w.start for w in windows],
            [w.start + columns.window_size_ms for w in windows],
        )
    if columns.kind == "session":
        sessions = [decode_session_key(key) for key in keys]
        return [key for key, *_ in sessions], [s.start for s in sessions], [s.end for s in sessions]
    return keys, [], []


def _type(serde: AnySerde | None) -> tuple[str, pa.DataType]:
    return _TYPES.get(type(serde), _BINARY)


def _decoded(values: Sequence[bytes | None], serde: AnySerde | None, topic: str) -> pa.Array:
    kind = _type(serde)
    if serde is None or kind is _BINARY:
        return pa.array(values, pa.binary())
    read: Callable[[bytes], Any]
    if type(serde) in _TEXT:
        read = bytes.decode
    elif type(serde) is UUIDSerde:
        read = lambda data: str(serde.deserialize(topic, data))  # noqa: E731 (one of three)
    else:
        read = lambda data: serde.deserialize(topic, data)  # noqa: E731 (one of three)
    return pa.array([None if value is None else read(value) for value in values], kind[1])
