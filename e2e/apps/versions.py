"""Versions of the word count, for tests of upgrades: `spec.app.entrypoint` chooses one, `versions:compatible` for example.

All read lines from `config.input` and write counts to `config.output`. They differ in whether they fit the state of the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from millrace.dsl import Consumed, Grouped, KTable, Materialized, Produced, StreamsBuilder
from millrace.processor import Processor, ProcessorContext
from millrace.records import Record
from millrace.serdes import Serdes
from wordcount import topology, words

first = topology
"""The example unchanged; its store is called `counts`."""


def compatible(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Skip words of one letter after they are counted: stores and topics stay the same."""
    counts = _counted(builder, config, "counts")
    text = Serdes.string()
    counts.to_stream().filter(lambda word, _: len(word) > 1).to(config["output"], Produced.with_(text, Serdes.long()))


def extended(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Also count the words' lengths, in a separate sub-topology at the end, with its own store and repartition topic."""
    counts = _counted(builder, config, "counts")
    text, number = Serdes.string(), Serdes.long()
    counts.to_stream().to(config["output"], Produced.with_(text, number))
    by_length = counts.to_stream().group_by(lambda word, _: str(len(word)), Grouped.with_(text, number, name="lengths"))
    by_length.count(Materialized.as_("lengths"))


def incompatible(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Count into a store with another name: the first version's counts would be lost."""
    counts = _counted(builder, config, "tallies")
    counts.to_stream().to(config["output"], Produced.with_(Serdes.string(), Serdes.long()))


def failing(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Fail on the first record; the topology is the same as in the first version, so its plan is accepted."""
    counts = _counted(builder, config, "counts", words_of=_refuse)
    counts.to_stream().to(config["output"], Produced.with_(Serdes.string(), Serdes.long()))


def keyed(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Interpret the keys of lines, which are optional, as numbers: any other key makes a record that cannot be read."""
    counts = _counted(builder, config, "counts", keys=Serdes.long())
    counts.to_stream().to(config["output"], Produced.with_(Serdes.string(), Serdes.long()))


def slow(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Take 20 ms for each line, so that one thread manages fifty lines per second."""
    counts = _counted(builder, config, "counts", words_of=_hesitate)
    counts.to_stream().to(config["output"], Produced.with_(Serdes.string(), Serdes.long()))


def hanging(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Hang while a task starts; the plan is accepted, as stores and topics are the same as in the first version."""
    counts = _counted(builder, config, "counts")
    text = Serdes.string()
    counts.to_stream().process(_Hanging).to(config["output"], Produced.with_(text, Serdes.long()))


def unplannable(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Fail while the topology is built, so that there is no plan."""
    raise LookupError(f"There is no dictionary for {config['input']}")


def endless(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Hang while the topology is built, for tests of what a plan Job may do."""
    threading.Event().wait()


def _counted(
    builder: StreamsBuilder, config: Mapping[str, Any], store: str, *, words_of: Any = words, keys: Any = None
) -> KTable[str, int]:
    text = Serdes.string()
    return (
        builder.stream(config["input"], Consumed.with_(keys or text, text))
        .flat_map_values(words_of)
        .group_by(lambda _, word: word, Grouped.with_(text, text))
        .count(Materialized.as_(store))
    )


def _hesitate(line: str) -> list[str]:
    time.sleep(0.02)
    return words(line)


def _refuse(line: str) -> list[str]:
    raise ValueError(f"This version cannot read {line!r}")


class _Hanging(Processor[str, int, str, int]):
    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        threading.Event().wait()

    def process(self, record: Record[str, int]) -> None:
        self.context.forward(record)
