"""Records on their way through the job: rows of Spark, in batches of Arrow.

Columns are converted as a whole, because a Python object per value of Arrow would cost more than the engine's own work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millrace.records import NO_HEADERS, Headers, RawRecord, TopicPartition, new_tuple

REPORT = ""
"""The topic of the row with which a task reports what it did, as JSON in `value`."""
HEADERS_TYPE = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
"""Headers in Arrow."""
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("reached", pa.int64()),
        ("task", pa.string()),
        ("number", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("packed", pa.int32()),
    ]
)
"""`Row` in Arrow."""
COLUMNS = {
    "topic": "string",
    "partition": "int",
    "reached": "bigint",
    "task": "string",
    "number": "bigint",
    "timestamp": "bigint",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<name: string, value: binary>>",
}
"""A record in Spark: `Row` without `packed`."""
ROWS_DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
"""The same as a schema."""
PACKED_DDL = f"{ROWS_DDL}, packed int"
"""`Row` in Spark."""


class Row(NamedTuple):
    """A record of any topic, or many of one.

    The records of a partition are ordered by `reached`, `task` and `number`.
    """

    topic: str
    partition: int
    reached: int
    """Of a topic that is read again: the largest timestamp that its task had sent to this partition; if its stage is run in
    passes, the time that its task had reached. -1 of what is known only in the end."""
    task: str
    number: int
    """Counts what the task has sent."""
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    packed: int = 0
    """How many records are packed in `value`, see `packing`; 0 for a single one, -1 for none. Packed rows have the first one's
    `reached` and `number`."""


def to_arrow(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows, at least one, as Arrow."""
    *columns, headers, packed = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=False)]
    return pa.RecordBatch.from_arrays([*arrays, headers_array(headers), pa.array(packed, pa.int32())], schema=SCHEMA)


def headers_array(headers: Sequence[Headers]) -> pa.Array:
    """Return headers as Arrow."""
    if not any(headers):
        return pa.nulls(len(headers), HEADERS_TYPE)
    structs = [[{"name": name, "value": value} for name, value in one] if one else None for one in headers]
    return pa.array(structs, HEADERS_TYPE)


def headers_of(batch: pa.RecordBatch) -> list[Headers]:
    """Return the headers of each row."""
    headers = batch.column("headers")
    if headers.null_count == len(headers):
        return [NO_HEADERS] * len(headers)
    return [
        new_tuple(Headers, [(pair["name"], pair["value"]) for pair in one]) if one else NO_HEADERS
        for one in headers.to_pylist()
    ]


def topics_of(batch: pa.RecordBatch) -> list[str]:
    """Return the topics of the rows of a batch."""
    found: list[str] = pc.unique(batch.column("topic")).to_pylist()
    return found


def rows_of(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Return the rows of one topic."""
    return batch.filter(pc.equal(batch.column("topic"), topic))


def consumed(batch: pa.RecordBatch, partition: TopicPartition, offset: int) -> list[RawRecord]:
    """Return rows as the engine reads records.

    Args:
        batch: rows, with any of the columns of `Row`.
        partition: of all of them.
        offset: of the first.
    """
    number = batch.num_rows
    columns = (
        repeat(partition.topic, number),
        repeat(partition.partition, number),
        range(offset, offset + number),
        values_of(batch, "timestamp"),
        values_of(batch, "key"),
        values_of(batch, "value"),
        headers_of(batch),
    )
    return list(zip(*columns, strict=True))


def values_of(batch: pa.RecordBatch, column: str) -> list[Any]:
    """Return a column that has no nested values as Python objects."""
    found: list[Any] = batch.column(column).to_numpy(zero_copy_only=False).tolist()
    return found
