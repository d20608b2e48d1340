"""Records whose headers have names that are not UTF-8, as producers in other languages can write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from kafka import KafkaProducer

Headers = Sequence[tuple[bytes, bytes]]


class _Name(str):
    """The name of a header, which kafka-python writes as these bytes."""

    __slots__ = ("raw",)
    raw: bytes

    def __new__(cls, raw: bytes) -> Self:
        made = super().__new__(cls, raw.decode("latin-1"))
        made.raw = raw
        return made

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Return the bytes."""
        return self.raw


def write_records(
    kafka: Any, topic: str, records: Iterable[tuple[bytes | None, bytes | None, Headers]], partition: int = 0
) -> None:
    """Write keys, values and headers with the given bytes as their names to a partition."""
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    try:
        for key, value, headers in records:
            named = [(_Name(name), data) for name, data in headers]
            producer.send(topic, value, key, named, partition)
        producer.flush(60)
    finally:
        producer.close()
