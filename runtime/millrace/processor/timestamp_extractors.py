"""The timestamp extractors of Kafka Streams, which differ in what they do with negative timestamps.

An extractor is a function of the deserialised record and the partition time. If it returns a negative timestamp, the
record is dropped. The functions here are also recognised by identity: the engine uses the record's own timestamp without calling
them, and calls them only for negative ones.
"""

from __future__ import annotations

import logging
import time

from millrace.errors import InvalidTimestampError
from millrace.records import ConsumedRecord

_log = logging.getLogger(__name__)


def fail_on_invalid_timestamp(record: ConsumedRecord, partition_time: int) -> int:  # noqa: ARG001
    """Return the record's timestamp; the default extractor.

    Raises:
        InvalidTimestampError: the timestamp is negative.
    """
    if record.timestamp < 0:
        raise InvalidTimestampError(
            f"Record at offset {record.offset} of {record.topic}-{record.partition} has the negative timestamp "
            f"{record.timestamp}. It was written by a producer that sets none (before Kafka 0.10) or a wrong one. "
            "Use another timestamp extractor to skip such records (log_and_skip_on_invalid_timestamp), to give them the "
            "partition time (use_partition_time_on_invalid_timestamp), or to read a timestamp from their content."
        )
    return record.timestamp


def log_and_skip_on_invalid_timestamp(record: ConsumedRecord, partition_time: int) -> int:  # noqa: ARG001
    """Return the record's timestamp; if it is negative, log that and drop the record."""
    if record.timestamp < 0:
        _log.warning(
            "Record at offset %d of %s-%d is dropped: its timestamp is %d",
            record.offset,
            record.topic,
            record.partition,
            record.timestamp,
        )
    return record.timestamp


def use_partition_time_on_invalid_timestamp(record: ConsumedRecord, partition_time: int) -> int:
    """Return the record's timestamp, or the partition time if that is negative.

    Raises:
        InvalidTimestampError: the timestamp is negative and no record of the partition was seen before.
    """
    if record.timestamp >= 0:
        return record.timestamp
    if partition_time < 0:
        raise InvalidTimestampError(
            f"Record at offset {record.offset} of {record.topic}-{record.partition} has the negative timestamp "
            f"{record.timestamp}, and the partition time that would replace it is not known yet. "
            "Use log_and_skip_on_invalid_timestamp, or an extractor that finds a timestamp in the record."
        )
    return partition_time


def wallclock_timestamp(record: ConsumedRecord, partition_time: int) -> int:  # noqa: ARG001
    """Return the current time: processing time instead of event time. Not deterministic when records are replayed."""
    return time.time_ns() // 1_000_000


RECORD_TIMESTAMP_EXTRACTORS = frozenset(
    {
        fail_on_invalid_timestamp,
        log_and_skip_on_invalid_timestamp,
        use_partition_time_on_invalid_timestamp,
    }
)
"""Extractors that return the record's own timestamp whenever it is not negative."""

EXTRACTORS_BY_NAME = {
    "FailOnInvalidTimestamp": fail_on_invalid_timestamp,
    "LogAndSkipOnInvalidTimestamp": log_and_skip_on_invalid_timestamp,
    "UsePartitionTimeOnInvalidTimestamp": use_partition_time_on_invalid_timestamp,
    "WallclockTimestampExtractor": wallclock_timestamp,
}
"""Kafka Streams' names, which `default.timestamp.extractor` may use."""
