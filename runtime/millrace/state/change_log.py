"""The change-logging layer: writes to the bytes store are sent to the changelog topic in the same order.

It is compiled to one function per store when the store is opened, because it is on the path of every write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millrace.records import Headers, TopicPartition, new_tuple
from millrace.state.api import ChangelogRecord, LogChange, StoreContext
from millrace.state.bytes_store import (
    BytesStore,
    KeyValueBytesStore,
    Position,
    decode_position,
    encode_position,
)
from millrace.state.value_formats import TIMESTAMPED, ValueFormat, pack_long

CONSISTENCY_FLAG = "__iq.consistency.offset.vector.enabled__"
"""Internal setting: every changelog record carries the store's position in its headers."""

_VERSION_HEADER = ("v", b"\0")

Write = Callable[[Any, "bytes | None", "bytes | None", int, Headers], None]
"""Writes one row below the cache: its key in the bytes store, disk value, the serde's value bytes (None deletes),
timestamp in ms, headers."""


def change_sender(context: StoreContext, store_name: str, position: Position, *, enabled: bool) -> LogChange | None:
    """Return the function that sends a store's changes, or None if it is not logged."""
    partition = context.changelog_partition(store_name) if enabled else None
    if partition is None:
        return None
    send = context.send_change(partition)
    if not context.config.internal(CONSISTENCY_FLAG, ""):
        return send

    def send_with_position(key: bytes, value: bytes | None, timestamp: int | None, headers: Headers) -> None:
        vector = (_VERSION_HEADER, ("c", encode_position(position)))
        send(key, value, timestamp, new_tuple(Headers, (*headers, *vector)))

    return send_with_position


def compile_write(bytes_store: KeyValueBytesStore, log: LogChange | None, context: StoreContext) -> Write:
    """Return the write path below the record cache: bytes store, position, changelog."""
    put, position, record = bytes_store.put, bytes_store.position, context.record

    if log is None:

        def write_unlogged(
            key: bytes, row: bytes | None, _value: bytes | None, _timestamp: int, _headers: Headers
        ) -> None:
            put(key, row)
            topic = record.topic
            if topic is not None:
                at = topic, record.partition
                if record.offset > position.get(at, -1):
                    position[at] = record.offset

        return write_unlogged

    def write(key: bytes, row: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> None:
        put(key, row)
        topic = record.topic
        if topic is not None:
            at = topic, record.partition
            if record.offset > position.get(at, -1):  # evicted entries can be written after newer ones
                position[at] = record.offset
        log(key, value, timestamp, headers)

    return write


def note_position(bytes_store: BytesStore, headers: Headers) -> None:
    """Merge the position in a changelog record's headers, if any (see `CONSISTENCY_FLAG`)."""
    if headers and _VERSION_HEADER in headers:
        vector = headers.last("c")
        if vector is not None:
            position = bytes_store.position
            for partition, offset in decode_position(vector).items():
                position[partition] = max(offset, position.get(partition, -1))


def disk_rows(
    records: Sequence[ChangelogRecord], value_format: ValueFormat, bytes_store: BytesStore
) -> list[tuple[bytes, bytes | None]]:
    """Turn changelog records back into rows: the record's timestamp becomes part of the value again (formats §1)."""
    for headers in [record[4] for record in records if record[4]]:
        note_position(bytes_store, headers)
    to_disk = value_format.to_disk
    if to_disk is TIMESTAMPED.to_disk:  # the usual case, without a call
        return [
            (key, None if value is None else pack_long(timestamp) + value) for key, value, timestamp, _, _ in records
        ]
    return [
        (key, None if value is None else to_disk(value, timestamp, headers))
        for key, value, timestamp, _, headers in records
    ]


def restored_offsets(
    records: Iterable[ChangelogRecord], context: StoreContext, store_name: str
) -> dict[TopicPartition, int]:
    """Return the changelog offset of the last of these records."""
    partition = context.changelog_partition(store_name)
    offset = -1
    for record in records:
        offset = record.offset
    return {} if partition is None or offset < 0 else {partition: offset}
