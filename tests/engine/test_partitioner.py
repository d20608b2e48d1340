"""Keys go to the same partitions as with Java's producer."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from millrace.engine.partitioner import partition_for_key

VECTORS = [json.loads(line) for line in (Path(__file__).parent / "data" / "partitioner.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == "default"], ids=lambda v: v["key"] or "empty")
def test_hash_and_partition_are_javas(vector):
    """The partition of a key equals Java's, in a topic of some partitions and in one of as many as there are hashes."""
    key = base64.b64decode(vector["key"])
    assert partition_for_key(key, 2**31 - 1) == (vector["murmur2"] & 0x7FFFFFFF) % (2**31 - 1)
    assert partition_for_key(key, vector["numPartitions"]) == vector["partition"]
