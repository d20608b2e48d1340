"""Asking the brokers for the first, last or first-since-a-time offset of partitions, with the retries that takes.

Leaders move while we ask: errors that pass (not leader, offset not available after a fail-over) are asked again for the
partitions concerned until the deadline. librdkafka's admin client keeps asking the leaders, with the leader epochs, that it
knows; after an error only a new metadata request makes it look again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from millrace.errors import StreamsError, StreamsTimeoutError
from millrace.records import TopicPartition

__all__ = ["beginning_offsets", "end_offsets", "offsets_for_time", "query_offsets"]

_log = logging.getLogger(__name__)
_SPEC: Any = OffsetSpec
_REQUEST_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.1
_PASSING: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._NOENT,  # noqa: SLF001 (no leader is known)
    }
)


def query_offsets(
    admin: AdminClient, queries: Mapping[TopicPartition, Any], timeout_s: float, *, committed_only: bool = False
) -> dict[TopicPartition, int]:
    """Return one offset per partition.

    Args:
        admin: the client to ask with.
        queries: what to ask for each partition.
        timeout_s: how long to go on asking.
        committed_only: whether the end is the last stable offset (read_committed) or the high watermark.

    Raises:
        StreamsTimeoutError: no answer for some partition in time.
        StreamsError: the brokers refuse to answer.
    """
    isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
    deadline = time.monotonic() + timeout_s
    left = dict(queries)
    found: dict[TopicPartition, int] = {}
    while left:
        request = {ClientTopicPartition(tp.topic, tp.partition): spec for tp, spec in left.items()}
        futures = admin.list_offsets(request, isolation_level=isolation, request_timeout=_REQUEST_TIMEOUT_S)
        problem: KafkaError | None = None
        for partition, future in futures.items():
            try:
                offset = future.result().offset
            except KafkaException as error:
                problem = error.args[0]
                if problem.code() not in _PASSING and not problem.retriable():
                    raise StreamsError(
                        f"Cannot read offsets of {partition.topic}-{partition.partition}: {problem.str()}"
                    ) from error
                continue
            tp = TopicPartition(partition.topic, partition.partition)
            found[tp] = offset
            left.pop(tp, None)
        if left and problem is not None:
            if time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(left)[:5]))
                raise StreamsTimeoutError(f"No offsets for {names} in {timeout_s:.0f} s: {problem.str()}")
            _log.info("Asking again for offsets of %d partitions: %s", len(left), problem.str())
            time.sleep(_PAUSE_S)
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=_REQUEST_TIMEOUT_S)
    return found


def end_offsets(
    admin: AdminClient, partitions: Collection[TopicPartition], timeout_s: float, *, committed_only: bool = False
) -> dict[TopicPartition, int]:
    """Return the offset after the last record of each partition."""
    queries = _same(partitions, _SPEC.latest())
    return query_offsets(admin, queries, timeout_s, committed_only=committed_only)


def beginning_offsets(
    admin: AdminClient, partitions: Collection[TopicPartition], timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the offset of the first record still kept in each partition."""
    return query_offsets(admin, _same(partitions, _SPEC.earliest()), timeout_s)


def offsets_for_time(
    admin: AdminClient, partitions: Collection[TopicPartition], timestamp_ms: int, timeout_s: float
) -> dict[TopicPartition, int]:
    """Return the offset of the first record of each partition that is not older than a time; the end if all are."""
    found = query_offsets(admin, _same(partitions, _SPEC.for_timestamp(timestamp_ms)), timeout_s)
    later = [partition for partition, offset in found.items() if offset < 0]
    return {**found, **end_offsets(admin, later, timeout_s)} if later else found


def _same(partitions: Collection[TopicPartition], spec: Any) -> dict[TopicPartition, Any]:
    return dict.fromkeys(partitions, spec)
