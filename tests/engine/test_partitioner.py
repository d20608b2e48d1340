"""Keys go to the same partitions as with Java's producer."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from millrace.engine.partitioner import murmur2, partition_for_key

VECTORS = [json.loads(line) for line in (Path(__file__).parent / "data" / "partitioner.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == "default"], ids=lambda v: v["key"] or "empty")
def test_hash_and_partition_are_javas(vector):
    """murmur2 and the partition of a key equal Java's."""
    key = base64.b64decode(vector["key"])
    assert murmur2(key) == vector["murmur2"]
    assert partition_for_key(key, vector["numPartitions"]) == vector["partition"]


def test_known_hash_of_a():
    """The hash of "a" is the one in formats §8."""
    assert murmur2(b"a") == -1563381124


@pytest.mark.parametrize("length", [1, 3, 4, 127, 128, 131, 132, 133, 1000])
def test_partition_equals_the_clients(length):
    """Keys of any length go where the Kafka client's own implementation sends them."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    key = bytes((7 * i + length) % 256 for i in range(length))
    for partitions in (1, 2, 7, 64, 1000):
        assert partition_for_key(key, partitions) == confluent_kafka.murmur2(key, partitions)
