"""Topologies of the tests, importable by Spark's executors."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path

from millrace.dsl import Consumed, Grouped, Joined, Materialized, Produced, SessionWindows, StreamsBuilder
from millrace.errors import UnavailableSerdeError
from millrace.processor import Processor
from millrace.serdes import Serde, Serdes
from millrace.state import Stores
from millrace.topology import Topology


@dataclass
class Killed:
    """Ends its process as the kernel does if memory runs out."""

    source: str

    def __call__(self):
        builder = StreamsBuilder()
        string = Serdes.string()
        builder.stream(self.source, Consumed.with_(string, string)).map_values(die).to(
            "out", Produced.with_(string, string)
        )
        return builder.build()


def die(_value):
    """End the process, without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_java(value):
    """End Spark's Java, of whose processes this is one."""
    process = os.getpid()
    while Path(f"/proc/{process}/comm").read_text() != "java\n":
        [process] = re.findall(r"^PPid:\s(\d+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    os.kill(int(process), signal.SIGKILL)
    return value


class UnavailableSerde(Serde[str]):
    """A serde whose schema registry is down."""

    def serialize(self, topic, value):
        raise UnavailableSerdeError(f"No schema for {value!r} of {topic}: the registry does not answer")

    deserialize = serialize


@dataclass
class ReadWithUnavailableSerde:
    """Reads records whose values it cannot read now."""

    source: str

    def __call__(self):
        builder = StreamsBuilder()
        builder.stream(self.source, Consumed.with_(Serdes.string(), UnavailableSerde())).to("out")
        return builder.build()


@dataclass
class ReadNumbers:
    """Reads a topic whose values are numbers."""

    source: str

    def __call__(self):
        builder = StreamsBuilder()
        builder.stream(self.source, Consumed.with_(Serdes.string(), Serdes.long())).group_by_key().count()
        return builder.build()


@dataclass
class CountPerKey:
    """Counts records per key, with or without a shuffle before."""

    source: str
    sink: str
    settings: dict = field(default_factory=dict)
    by_value: bool = False

    def __call__(self):
        string, long = Serdes.string(), Serdes.long()
        builder = StreamsBuilder()
        records = builder.stream(self.source, Consumed.with_(string, string))
        grouped = Grouped.with_(string, string, name="by")
        keyed = records.group_by(lambda _, value: value, grouped) if self.by_value else records.group_by_key(grouped)
        counts = keyed.count(Materialized.as_("counts").with_key_serde(string).with_value_serde(long))
        counts.to_stream().to(self.sink, Produced.with_(string, long))
        return builder.build(self.settings or None)


@dataclass
class SessionsPerKey:
    """Counts records per key and session."""

    source: str

    def __call__(self):
        string, long = Serdes.string(), Serdes.long()
        builder = StreamsBuilder()
        grouped = builder.stream(self.source, Consumed.with_(string, string)).group_by_key()
        sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace("1h", "1h"))
        sessions.count(Materialized.as_("sessions").with_key_serde(string).with_value_serde(long))
        return builder.build()


@dataclass
class Copied:
    """Copies a topic."""

    source: str
    sink: str

    def __call__(self):
        string = Serdes.string()
        builder = StreamsBuilder()
        builder.stream(self.source, Consumed.with_(string, string)).to(self.sink, Produced.with_(string, string))
        return builder.build()


@dataclass
class CopiedTwice:
    """Copies a topic to another, and that one to a third."""

    source: str
    between: str
    sink: str

    def __call__(self):
        string = Serdes.string()
        builder = StreamsBuilder()
        for source, sink in ((self.source, self.between), (self.between, self.sink)):
            builder.stream(source, Consumed.with_(string, string)).to(sink, Produced.with_(string, string))
        return builder.build()


@dataclass
class CopiedFrom:
    """Copies what has keys from the one on that a file has when it is read."""

    source: str
    sink: str
    first_key: Path

    def __call__(self):
        string = Serdes.string()
        builder = StreamsBuilder()
        first = self.first_key.read_text()
        records = builder.stream(self.source, Consumed.with_(string, string))
        records.filter(lambda key, _: key >= first).to(self.sink, Produced.with_(string, string))
        return builder.build()


@dataclass
class CountAndVersions:
    """Counts records per key, and keeps the versions of each key's value."""

    source: str

    def __call__(self):
        string, long = Serdes.string(), Serdes.long()
        builder = StreamsBuilder()
        records = builder.stream(self.source, Consumed.with_(string, string))
        counts = Materialized.as_("counts").with_key_serde(string).with_value_serde(long)
        records.group_by_key(Grouped.with_(string, string, name="by")).count(counts)
        versions = Materialized.as_(Stores.persistent_versioned_key_value_store("versions", "1d"))
        records.to_table(versions.with_key_serde(string).with_value_serde(string))
        return builder.build()


@dataclass
class TableOfTopic:
    """Keeps a topic as a table."""

    source: str
    settings: dict

    def __call__(self):
        string = Serdes.string()
        builder = StreamsBuilder()
        builder.table(self.source, Consumed.with_(string, string), Materialized.as_("table"))
        return builder.build(self.settings)


@dataclass
class JoinedByValue:
    """Joins a stream, by its values, with a table."""

    stream: str
    table: str
    sink: str

    def __call__(self):
        string = Serdes.string()
        consumed = Consumed.with_(string, string)
        builder = StreamsBuilder()
        table = builder.table(self.table, consumed, Materialized.as_("table"))
        keyed = builder.stream(self.stream, consumed).select_key(lambda _, value: value)
        joined = keyed.join(table, lambda _, value: value, Joined.with_(string, string, string, name="keyed"))
        joined.to(self.sink, Produced.with_(string, string))
        return builder.build()


class KeepsRecords(Processor):
    """Keeps the value of each key."""

    def process(self, record):
        """Put it."""
        self.context.get_state_store("kept").put(record.key, record.value)


@dataclass
class Kept:
    """Keeps records in memory and in a changelog."""

    source: str

    def __call__(self):
        string = Serdes.string()
        store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("kept"), string, string)
        topology = Topology().add_source("source", self.source, key_serde=string, value_serde=string)
        return topology.add_processor("keep", KeepsRecords, "source").add_state_store(store, "keep")
