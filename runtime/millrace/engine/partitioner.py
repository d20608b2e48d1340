"""Which partition a key belongs to: Java's default partitioner, murmur2 of the serialised key (formats §8)."""

from __future__ import annotations

from confluent_kafka import murmur2 as partition_for_key

__all__ = ["partition_for_key"]
"""Takes a serialised key and the topic's number of partitions. It is librdkafka's own function, in C."""
