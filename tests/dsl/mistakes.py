"""What the tables of mistakes need: something to call operators on, and the check of what a mistake is told."""

from __future__ import annotations

import re

import pytest

from millrace import (
    FixedKeyProcessor,
    JoinWindows,
    Processor,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    TopologyTestDriver,
)

TEXT, LONG = Serdes.string(), Serdes.long()
SETTINGS = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}
TUMBLING = TimeWindows.of_size_with_no_grace("10s")
WITHIN = JoinWindows.of_time_difference_with_no_grace("5s")
STORE = Stores.in_memory_key_value_store("store")


class Upper(Processor):
    """A processor."""

    def process(self, record):
        """Forward it in capitals."""
        self.context.forward(record.with_value(record.value.upper()))


class Greeting(Processor):
    """A processor that needs an argument."""

    def __init__(self, word):
        self.word = word


class FixedKey(FixedKeyProcessor):
    """A processor that keeps the key."""


class NoProcessor:
    """A class without the method `process`."""


async def coroutine(value):
    """Return a value, later."""
    return value


def identity(value):
    """Return a value."""
    return value


class Parts:
    """A builder with one of everything that operators are called on."""

    def __init__(self):
        self.builder = StreamsBuilder()
        self.stream = self.builder.stream("in")
        self.other = self.builder.stream("other")
        self.table = self.builder.table("table")
        self.right = self.builder.table("right")
        self.everywhere = self.builder.global_table("everywhere")
        self.grouped = self.stream.group_by_key()
        self.by_letter = self.table.group_by(lambda key, value: (value[0], value))
        self.cogrouped = self.grouped.cogroup(lambda key, value, so_far: so_far + value)
        self.windowed = self.grouped.windowed_by(TUMBLING)
        self.sessions = self.grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace(5))

    def driver(self, config=SETTINGS):
        """Return a driver of what `in` is copied to."""
        self.stream.to("out")
        return TopologyTestDriver(self.builder.build(), config)


def join(left, right):
    """Join two values."""
    return f"{left}{right}"


def store_of_texts():
    """Return the builder of a store."""
    return Stores.key_value_store_builder(STORE, TEXT, TEXT)


def check(error, message, mistake):
    """Check that a call raises an error with this message, whose places are in the call's file and lines."""
    with pytest.raises(error, match=message) as caught:
        mistake(Parts())
    places = re.findall(r"\(at ([^()]*):(\d+)\)", str(caught.value))
    assert places, str(caught.value)
    own = {(mistake.__code__.co_filename, line) for _, _, line in mistake.__code__.co_lines()}
    helpers = {(__file__, Parts.driver.__code__.co_firstlineno + 3)}
    assert {(file, int(line)) for file, line in places} <= own | helpers, str(caught.value)
