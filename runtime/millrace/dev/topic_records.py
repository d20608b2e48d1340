"""Records of a topic as JSON lines: written to it, and read from it.

A line has `key`, `value`, `headers`, `timestamp` (ms since the epoch) and `partition`. A record that was read also has an
`offset`, which is ignored when it is written, so that the output of one command can be the input of another.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import signal
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.deadline import Deadline
from millrace.dev._readiness import quiet_admin
from millrace.dev.topic_serdes import TopicSerdes, decode, encode, readable
from millrace.errors import ConfigError, SerializationError, StreamsError
from millrace.kafka.admin import all_topic_partitions
from millrace.kafka.clients import open_consumer, open_producer
from millrace.kafka.message_headers import mend_headers
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.records import Headers, TopicPartition
from millrace.serdes import Serdes

__all__ = ["ParsedRecord", "as_json", "parse", "partitions_of", "read", "write"]

_FIELDS: Final = ("key", "value", "headers", "timestamp", "partition", "offset")
_LONGEST: Final = 2**63 - 1
_DELIVERY_S: Final = 60.0
_QUEUE_PAUSE_S: Final = 0.1
_POLL_S: Final = 0.2
_REPLACEMENT: Final = "\ufffd"


@dataclass(frozen=True, slots=True)
class ParsedRecord:
    """A record to write, in bytes; None lets the producer choose the partition, or the timestamp."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None
    partition: int | None


def partitions_of(bootstrap_servers: str, topic: str) -> int:
    """Return how many partitions a topic has; never creates it.

    Raises:
        ConfigError: There is no such topic; the message has the closest name.
        StreamsTimeoutError: The brokers did not answer in time.
    """
    existing = all_topic_partitions(quiet_admin(bootstrap_servers))
    if topic in existing:
        return existing[topic]
    close = difflib.get_close_matches(topic, existing, 1)
    told = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(sorted(existing)) or 'none'}"
    raise ConfigError(f"There is no topic {topic}; {told}")


# Writing


def parse(line: str, topic: str, serdes: TopicSerdes, partitions: int) -> ParsedRecord:
    """Read a line that describes a record.

    Args:
        line: The JSON.
        topic: The topic to write it to.
        serdes: How its key and value are written.
        partitions: How many partitions the topic has.

    Raises:
        SerializationError: It is not JSON, has an unknown field, or a field does not fit its serde or the topic.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:  # brackets can be nested too deeply
        raise SerializationError(f'not JSON ({error}): write {{"key": "a", "value": "b"}}') from None
    if not isinstance(fields, dict):
        raise SerializationError('not a JSON object: write {"key": "a", "value": "b"}')
    for name in fields.keys() - set(_FIELDS):
        raise SerializationError(f"there is no field {name!r}: use {', '.join(_FIELDS[:-1])}")
    headers = _headers(fields.get("headers"))
    partition = _number("partition", fields)
    if partition is not None and partition >= partitions:
        raise SerializationError(f"partition: {topic} has the partitions 0 to {partitions - 1}")
    return ParsedRecord(
        _encoded("key", serdes.key, topic, fields, headers),
        _encoded("value", serdes.value, topic, fields, headers),
        headers,
        _number("timestamp", fields),
        partition,
    )


def _encoded(name: str, serde: Any, topic: str, fields: Mapping[str, object], headers: Headers) -> bytes | None:
    try:
        return encode(serde, topic, fields.get(name), headers)
    except SerializationError as error:
        raise SerializationError(f"{name}: {error}") from error


def _headers(given: object) -> Headers:
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    try:
        named = [(name, value) for name, value in pairs]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise SerializationError('headers: write {"name": "value"}, or [["name", "value"], …]') from None
    if not all(isinstance(name, str) and isinstance(value, str | dict | None) for name, value in named):
        raise SerializationError("headers: names and values are text")
    try:
        return Headers((name, encode(Serdes.string(), "", value, Headers())) for name, value in named)
    except SerializationError as error:
        raise SerializationError(f"headers: {error}") from None


def _number(name: str, fields: Mapping[str, object]) -> int | None:
    number = fields.get(name)
    if number is not None and (type(number) is not int or not 0 <= number <= _LONGEST):
        raise SerializationError(f"{name}: {number!r} is not a whole number from 0 to 2⁶³-1")
    return number


def write(bootstrap_servers: str, topic: str, lines: Iterable[str], serdes: TopicSerdes) -> int:
    """Write records to a topic, with the partitioner of Java's producer, and return how many the brokers have.

    Args:
        bootstrap_servers: Where.
        topic: An existing topic.
        lines: A record each; empty ones are skipped.
        serdes: How keys and values are written.

    Raises:
        SerializationError: A line is wrong; the message says which. All lines before it have been written.
        StreamsError: The brokers refused a record.
    """
    partitions = partitions_of(bootstrap_servers, topic)
    writer = _Writer(bootstrap_servers, topic)
    written = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            writer.send(parse(line, topic, serdes, partitions))
        except SerializationError as error:
            writer.flush()
            raise SerializationError(f"Record {number}: {error}. Records written before it: {written}") from error
        written += 1
    writer.flush()
    return written


class _Writer:
    """A producer for one topic that remembers what the brokers refused."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._refused: list[KafkaError] = []
        self._producer = open_producer(
            {"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random", "enable.idempotence": True}
        )

    def send(self, record: ParsedRecord) -> None:
        """Send a record, once there is room for it in the queue.

        Raises:
            SerializationError: It is too large.
        """
        options = {"partition": record.partition, "timestamp": record.timestamp}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        headers: list[Any] = list(record.headers)
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, headers=headers, on_delivery=self._delivered, **given
                )
            except BufferError:
                self._poll(_QUEUE_PAUSE_S)
            except KafkaException as error:
                raise SerializationError(error.args[0].str()) from None
            else:
                self._poll(0)
                return

    def _poll(self, timeout_s: float) -> None:
        with _interruptible():
            self._producer.poll(timeout_s)

    def flush(self) -> None:
        """Wait until the brokers have everything.

        Raises:
            StreamsError: They refused a record, or did not answer in time.
        """
        deadline, undelivered = Deadline(_DELIVERY_S), 1
        while undelivered and not deadline.passed:
            with _interruptible():
                undelivered = self._producer.flush(_POLL_S)
        if undelivered or self._refused:
            why = self._refused[0].str() if self._refused else f"the brokers did not answer within {_DELIVERY_S:.0f} s"
            raise StreamsError(f"Not all records could be written to {self._topic}: {why}")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused.append(error)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Keep an interrupt until librdkafka's call is over: its binding would lose one that arrives in one of its reports."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or another's
        yield
        return
    arrived: list[int] = []
    try:
        signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if arrived:
        raise KeyboardInterrupt


# Reading


def read(bootstrap_servers: str, topic: str, *, follow: bool = False, from_beginning: bool = True) -> Iterator[Message]:
    """Read a topic's committed records, in the order in which they arrive.

    Args:
        bootstrap_servers: Where.
        topic: An existing topic.
        follow: Whether to wait for more at the end; otherwise it ends at the last record that is committed now.
        from_beginning: Whether to start at the first records, or after the last committed one.

    Raises:
        ConfigError: There is no such topic.
        StreamsError: It cannot be read any more.
    """
    partitions = [TopicPartition(topic, number) for number in range(partitions_of(bootstrap_servers, topic))]
    admin = quiet_admin(bootstrap_servers)
    ends = latest_offsets(admin, partitions, committed_only=True)
    starts = earliest_offsets(admin, partitions) if from_beginning else ends
    unread = {partition.partition for partition in partitions if starts[partition] < ends[partition]}
    consumer = open_consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"millrace-dev-consume-{uuid.uuid4()}",  # required, but no group is joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
        }
    )
    try:
        consumer.assign([ClientTopicPartition(*partition, starts[partition]) for partition in partitions])
        while follow or unread:
            with _interruptible():
                messages = consumer.consume(500, _POLL_S)
            for message in messages:
                error = message.error()
                number, offset = message.partition(), message.offset()
                assert number is not None
                assert offset is not None
                if error is None:
                    if follow or offset < ends[TopicPartition(topic, number)]:
                        yield message
                    offset += 1
                elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 (its only name)
                    raise StreamsError(f"Cannot read {topic}: {error.str()}")
                if offset >= ends[TopicPartition(topic, number)]:
                    unread.discard(number)
    finally:
        consumer.close()


def as_json(message: Message, serdes: TopicSerdes) -> str:
    """Return a record as a line of JSON; a key, a value or headers that cannot be read have an error next to them."""
    topic = str(message.topic())
    mend_headers([message])
    received: Any = message.headers() or ()
    headers = Headers(received)
    kind, timestamp = message.timestamp()
    fields: dict[str, object] = {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
    }
    for name, serde, data in (("key", serdes.key, message.key()), ("value", serdes.value, message.value())):
        fields[name], problem = decode(serde, topic, data, headers)
        if problem is not None:
            fields[f"{name}Error"] = problem
    fields["headers"] = [[name, readable(value)] for name, value in headers]
    if any(_REPLACEMENT in name for name, _ in headers):
        fields["headersError"] = f"{_REPLACEMENT} in a name: its bytes are not UTF-8"
    return json.dumps(fields, ensure_ascii=False)
