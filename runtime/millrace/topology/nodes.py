"""The nodes of a physical topology, as `Topology.add_*` and the DSL's compilation declare them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.processor.api import StreamPartitioner, TimestampExtractor, TopicNameExtractor
from millrace.processor.node import NodeFactory
from millrace.serdes.base import Serde


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Reads records of some topics, or of all that match a pattern."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: str | None = None
    """`earliest`, `latest`, `none`, `by_duration:<ms>`, or None for the consumer's default (earliest)."""


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """Runs code on the records of its parents."""

    name: str
    factory: NodeFactory
    parents: tuple[str, ...]
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Writes the records of its parents to a topic."""

    name: str
    parents: tuple[str, ...]
    topic: str | None = None
    topic_extractor: TopicNameExtractor | None = None
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    partitioner: StreamPartitioner | None = None


Node = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class RepartitionTopic:
    """An internal topic between two sub-topologies; `name` is without the application id."""

    name: str
    partitions: int | None = None
    """A fixed count, or None: the largest of the upstream inputs (which co-partitioning may raise)."""
    enforced: bool = False
    config: Mapping[str, str] = field(default_factory=dict)
