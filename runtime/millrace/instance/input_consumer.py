"""The consumer that feeds a stream thread: given partitions and offsets, it never joins the group and never resets itself.

If a partition no longer has the offset that is read next, because its log was truncated or its topic recreated, it is *lost*: it
is not read until it is assigned again. Meanwhile a stream thread asks the brokers where to continue, without waiting.

`poll` is the path of every input record, so records are converted with as few calls as possible, in runs per partition.
`Consumer.consume(n, timeout)` waits for the whole timeout unless it gets n records, so `poll` takes available records without
waiting, and waits for a single record only if there are none.

All partitions share one first-in, first-out queue inside the client. So a thread that does not poll gets nothing from any
partition, and must take the records in front before those behind them. `pause` takes a partition out of the queue, at a
price: librdkafka discards its fetched records, and fetches them again after `resume`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.errors import MissingSourceTopicError, StreamsError
from millrace.kafka.message_headers import mend_headers
from millrace.records import NO_HEADERS, Headers, RawRecord, TopicPartition, new_tuple

__all__ = ["InputConsumer"]

_log = logging.getLogger(__name__)
_GONE: Final = frozenset(
    {KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}  # noqa: SLF001
)
_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
_REFUSED: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED})


class InputConsumer:
    """Reads the input partitions of a thread's running tasks.

    Args:
        client: opened with `enable.partition.eof` and `auto.offset.reset=error`.
        reset: returns the offset to continue from when a partition is lost; None = the caller assigns it again later.
    """

    def __init__(self, client: Consumer, reset: Callable[[TopicPartition], int] | None = None) -> None:
        self._client = client
        self._reset = reset
        self._partitions: dict[tuple[str, int], TopicPartition] = {}
        self._paused: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, int] = {}
        self.at_end: dict[TopicPartition, int] = {}
        """Partitions whose end was reached when last fetched, with the offset of that end."""
        self.positions: dict[TopicPartition, int] = {}
        """Offset of the next record to be fetched."""
        self.lost: set[TopicPartition] = set()
        """Partitions to assign again."""

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The assigned partitions."""
        return self._partitions.values()

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        """Start reading partitions at the given offsets."""
        if starts:
            self._client.incremental_assign([ClientTopicPartition(*tp, offset) for tp, offset in starts.items()])
            self._partitions.update((partition, partition) for partition in starts)
            self.positions.update(starts)
            self.lost.difference_update(starts)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading partitions; their records that were fetched but not polled are discarded."""
        self.lost.difference_update(partitions)
        ours = [partition for partition in partitions if self._partitions.pop(partition, None) is not None]
        if ours:
            self.resume(ours)  # librdkafka would leave them paused when they are assigned again
            self._client.incremental_unassign([ClientTopicPartition(*partition) for partition in ours])
            for partition in ours:
                self.at_end.pop(partition, None)
                self.positions.pop(partition, None)
                self._ends.pop(partition, None)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching partitions until `resume`; records that were fetched but not polled are discarded and fetched again."""
        new = [partition for partition in partitions if partition not in self._paused and partition in self._partitions]
        if new:
            self._client.pause([ClientTopicPartition(*partition) for partition in new])
            self._paused.update(new)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch paused partitions again."""
        back = [partition for partition in partitions if partition in self._paused]
        if back:
            self._client.resume([ClientTopicPartition(*partition) for partition in back])
            self._paused.difference_update(back)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return frozenset(self._paused)

    def poll(self, max_records: int, timeout_s: float) -> dict[TopicPartition, list[RawRecord]]:
        """Return records per partition, in offset order.

        Args:
            max_records: how many at most.
            timeout_s: how long to wait if there are none.

        Raises:
            MissingSourceTopicError: an assigned topic no longer exists.
            StreamsError: the brokers refuse access, or the client failed.
        """
        messages = self._client.consume(max_records, 0)
        if not messages and timeout_s > 0:
            first = self._client.poll(timeout_s)
            if first is None:
                return {}
            messages = [first]
            if max_records > 1:
                messages += self._client.consume(max_records - 1, 0)
        batches: dict[TopicPartition, list[RawRecord]] = {}
        topic: str | None = None
        number: int | None = -1
        partition: TopicPartition | None = None
        append: Callable[[RawRecord], None] = list[RawRecord]().append
        some_headers = mend_headers(messages)
        for message in messages:
            if message.error() is not None:
                self._note_position(partition, batches)  # before the event, which may change the position
                topic, number, partition = None, -1, None
                self._on_event(message)
                continue
            if message.partition() != number or message.topic() != topic:
                self._note_position(partition, batches)
                topic, number = message.topic(), message.partition()
                partition = self._partitions.get((topic, number))  # type: ignore[arg-type]
                if partition is None:  # unassigned after it was fetched
                    topic = None
                    continue
                topic = partition.topic
                append = batches.setdefault(partition, []).append
            append(
                (  # type: ignore[arg-type]  # without an error, none of these is None
                    topic,
                    number,
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    new_tuple(Headers, message.headers())  # type: ignore[arg-type]
                    if some_headers and message.headers()
                    else NO_HEADERS,
                )
            )
        self._note_position(partition, batches)
        return batches

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how many offsets the broker has beyond what was polled; None = unknown. May be called in any thread."""
        if partition in self.at_end:
            return 0
        position, end = self.positions.get(partition), self._ends.get(partition, -1)
        return None if position is None or end < 0 else max(0, end - position)

    def refresh_ends(self, partitions: Collection[TopicPartition]) -> None:
        """Update the ends of partitions, for `lag`, from what fetch responses have reported; asks no broker.

        Call it only in the thread that polls: confluent-kafka lets one thread at a time into a client, and another thread would
        have to wait until the polling one happens to be outside.
        """
        for partition in partitions:
            watermarks = self._client.get_watermark_offsets(ClientTopicPartition(*partition), cached=True)
            if watermarks is not None:
                self._ends[partition] = int(watermarks[1])

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def _note_position(
        self, partition: TopicPartition | None, batches: Mapping[TopicPartition, list[RawRecord]]
    ) -> None:
        records = None if partition is None else batches.get(partition)
        if partition is not None and records:
            _, _, offset, *_ = records[-1]
            self.positions[partition] = offset + 1
            if self.at_end.get(partition, 0) < self.positions[partition]:
                self.at_end.pop(partition, None)

    def _on_event(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        code = error.code()
        where = (message.topic() or "", -1 if message.partition() is None else message.partition())
        partition = self._partitions.get(where)  # type: ignore[arg-type]
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            offset = message.offset()
            if partition is not None and offset is not None:
                self.at_end[partition] = offset
                self.positions[partition] = max(offset, self.positions.get(partition, 0))
        elif code in _OUT_OF_RANGE and partition is not None:
            self._lose(partition, error)
        elif code in _GONE:
            if partition is not None or not where[0]:
                raise MissingSourceTopicError(
                    f"Input topic {where[0] or '?'} (partition {where[1]}) does not exist: {error.str()}. Was it deleted while "
                    "the application ran? Create it again, and reset the application if its records are gone"
                )
        elif code in _REFUSED:
            raise StreamsError(
                f"Cannot read {where[0]}: {error.str()}. Grant this application's user READ on the topic"
            )
        elif error.fatal():
            raise StreamsError(f"The consumer failed: {error.str()}")
        else:
            _log.info("Consumer: %s", error.str())

    def _lose(self, partition: TopicPartition, error: KafkaError) -> None:
        _log.warning(
            "%s no longer has offset %s (%s): its records are skipped, and reading continues where the reset policy says",
            *(partition, self.positions.get(partition), error.str()),
        )
        self.unassign([partition])  # which also forgets the end, as that log no longer exists
        self.lost.add(partition)
        if self._reset is not None:
            self.assign({partition: self._reset(partition)})
