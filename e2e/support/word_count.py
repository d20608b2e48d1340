"""Words to count: what was written, and what the application has counted."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from e2e.support.application import PATIENCE_S
from millrace.serdes import Serdes

TEXT = (
    "the mill turns as the water runs",
    "what the water brings the mill grinds",
    "no water no flour",
    "the race is what leads the water to the wheel",
)


class Words:
    """An input topic of lines and an output topic of counts.

    Args:
        bootstrap_servers: The brokers, as seen from this process.
        prefix: The prefix of the topics' names.
        partitions: Partitions of the input topic.
    """

    def __init__(self, bootstrap_servers: str, prefix: str, partitions: int = 4) -> None:
        self._use(bootstrap_servers, f"{prefix}-lines", f"{prefix}-counts")
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        topics = [NewTopic(name, partitions, 1) for name in (self.input, self.output)]
        for future in admin.create_topics(topics).values():
            future.result(30)

    @classmethod
    def of(cls, bootstrap_servers: str, input_topic: str, output_topic: str) -> Self:
        """Return words in existing topics."""
        words = cls.__new__(cls)
        words._use(bootstrap_servers, input_topic, output_topic)
        return words

    def _use(self, bootstrap_servers: str, input_topic: str, output_topic: str) -> None:
        self.input, self.output = input_topic, output_topic
        self.written: Counter[str] = Counter()
        self.bootstrap_servers = bootstrap_servers
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "max.in.flight.requests.per.connection": 1,  # with more, librdkafka may lose its first batch
                "linger.ms": 5,
            }
        )

    def write(self, lines: Iterable[str] = TEXT, times: int = 1) -> None:
        """Write lines and wait until the brokers have them."""
        failed: list[str] = []
        for line in itertools.chain.from_iterable(itertools.repeat(tuple(lines), times)):
            self._producer.produce(
                self.input, line.encode(), on_delivery=lambda error, _: failed.append(str(error)) if error else None
            )
            self.written.update(line.split())
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        assert not failed, failed[0]

    def poison(self, key: bytes) -> None:
        """Write a line that should not be counted, with a key."""
        self._producer.produce(self.input, b"poison", key)
        assert self._producer.flush(60) == 0

    @contextmanager
    def load(self, lines_per_second: int = 100) -> Iterator[None]:
        """Keep writing lines."""
        stop = threading.Event()
        problems: list[BaseException] = []

        def run() -> None:
            try:
                while not stop.wait(0.2):
                    self.write(TEXT, times=max(1, lines_per_second // 5 // len(TEXT)))
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=run, name="load", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_S)
        assert not thread.is_alive()
        if problems:
            raise problems[0]

    def topics(self) -> list[str]:
        """Return the names of all topics in their Kafka."""
        return sorted(AdminClient({"bootstrap.servers": self.bootstrap_servers}).list_topics(timeout=30).topics)

    def mark(self) -> dict[int, int]:
        """Return the current ends of the output by partition: later counts come after them."""
        consumer = self._consumer()
        try:
            partitions = consumer.list_topics(self.output, timeout=30).topics[self.output].partitions
            return {
                number: consumer.get_watermark_offsets(TopicPartition(self.output, number), timeout=30)[1]
                for number in partitions
            }
        finally:
            consumer.close()

    def read(self, topic: str, records: int, timeout_s: float = PATIENCE_S) -> list[Message]:
        """Return the first committed records of a topic."""
        consumer = self._consumer()
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            return consumer.consume(records, timeout=timeout_s)
        finally:
            consumer.close()

    def counts(
        self, timeout_s: float, enough: Callable[[Counter[str]], bool], since: Mapping[int, int] | None = None
    ) -> Counter[str]:
        """Read the committed counts, from the beginning or a mark, until there are enough or time is up."""
        consumer = self._consumer()
        counts: Counter[str] = Counter()
        key_serde, value_serde = Serdes.string(), Serdes.long()
        try:
            partitions = consumer.list_topics(self.output, timeout=30).topics[self.output].partitions
            consumer.assign(
                [TopicPartition(self.output, number, (since or {}).get(number, 0)) for number in partitions]
            )
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline and not enough(counts):
                for message in consumer.consume(1_000, timeout=0.5):
                    assert message.error() is None, message.error()
                    word = key_serde.deserialize(self.output, message.key())
                    count = value_serde.deserialize(self.output, message.value())
                    assert isinstance(word, str)
                    assert isinstance(count, int)
                    counts[word] = count
        finally:
            consumer.close()
        return counts

    def wait_exact(self, timeout_s: float = PATIENCE_S, since: Mapping[int, int] | None = None) -> None:
        """Wait until every word that was written is counted, and check that none is counted twice.

        Args:
            timeout_s: How long it may take.
            since: A mark before which counts are ignored, if words are counted again.
        """
        wanted = Counter(self.written)
        counts = self.counts(timeout_s, lambda seen: all(seen[word] >= count for word, count in wanted.items()), since)
        assert counts == wanted

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": str(uuid.uuid4()),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
