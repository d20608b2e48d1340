"""Count words: the smallest application with state.

It reads lines from one topic and writes each word's count so far to another. In between, the words go through a repartition
topic, so that one task sees all occurrences of a word. Its counts are kept in a RocksDB store, backed by a changelog topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from millrace.dsl import Consumed, Grouped, Materialized, Produced, StreamsBuilder
from millrace.serdes import Serdes

_WORD = re.compile(r"[a-z_]+")


def words(line: str) -> list[str]:
    """Return the words of a line, in lower case.

    >>> words("def __init__(self, Value: int = 42):")
    ['def', '__init__', 'self', 'value', 'int']
    """
    return _WORD.findall(line.lower())


def topology(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Build the topology.

    Args:
        builder: Where to build it.
        config: `spec.app.config` of the manifest: the names of the `input` and `output` topics.
    """
    text = Serdes.string()
    (
        builder.stream(config["input"], Consumed.with_(text, text))
        .flat_map_values(words)
        .group_by(lambda _, word: word, Grouped.with_(text, text))
        .count(Materialized.as_("counts"))
        .to_stream()
        .to(config["output"], Produced.with_(text, Serdes.long()))
    )
