"""Sends a buffered record on under the context it came with, not that of the record that happened to release it."""

from __future__ import annotations

from typing import Any

from millrace.processor.node import ProcessFn
from millrace.records import RecordContext


def forward_as(current: RecordContext, original: RecordContext, forward: ProcessFn, key: Any, value: Any) -> None:
    """Call `forward` with the original's timestamp and headers, the task's current context being the original one.

    Args:
        current: the task's context, changed for as long as the call lasts.
        original: the context that was buffered with the record.
        forward: gets the record.
        key: of the record.
        value: of the record.
    """
    saved = current.topic, current.partition, current.offset, current.timestamp, current.headers
    saved_raw = current.raw_key, current.raw_value
    current.topic = original.topic
    current.partition = original.partition
    current.offset = original.offset
    current.timestamp = original.timestamp
    current.headers = original.headers
    current.raw_key = current.raw_value = None
    try:
        forward(key, value, original.timestamp, original.headers)
    finally:
        current.topic, current.partition, current.offset, current.timestamp, current.headers = saved
        current.raw_key, current.raw_value = saved_raw
