"""Settings under their older names, and how settings depend on each other."""

from __future__ import annotations

import pytest

from millrace import StreamsBuilder, TopologyTestDriver
from millrace.config import StreamsConfig
from millrace.processor.handlers import HandlerResponse


def of(**settings):
    """Return a configuration; underscores stand for dots."""
    return StreamsConfig.of(
        {"application.id": "a", **{key.replace("_", "."): value for key, value in settings.items()}}
    )


def test_older_name_of_the_cache_size():
    """`cache.max.bytes.buffering` counts unless `statestore.cache.max.bytes` is given."""
    assert of(cache_max_bytes_buffering=5).statestore_cache_max_bytes == 5
    assert of(cache_max_bytes_buffering=5, statestore_cache_max_bytes=7).statestore_cache_max_bytes == 7


def test_commit_interval_depends_on_the_guarantee():
    """Under exactly-once it is 100 ms unless it is given, as in Kafka Streams."""
    assert of().commit_interval_ms == 30_000
    assert of(processing_guarantee="exactly_once_v2").commit_interval_ms == 100
    assert of(processing_guarantee="exactly_once_v2", commit_interval_ms=7).commit_interval_ms == 7


class Continue:
    """A handler for every kind of failure that skips the record."""

    def __init__(self):
        self.asked = 0

    def handle_error(self, context, record, error):
        """Skip it."""
        self.asked += 1
        return HandlerResponse.resume()

    def handle_serialization_error(self, context, topic, record, error):
        """Skip it."""
        return self.handle_error(context, record, error)


@pytest.mark.parametrize("kind", ["deserialization", "production"])
def test_older_names_of_handlers(kind):
    """`default.….exception.handler` counts unless the name without `default.` is given."""
    old, new = Continue(), Continue()
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: value if kind == "deserialization" else object()).to("out")
    serde = "long" if kind == "deserialization" else "string"
    config = {"default.key.serde": "string", "default.value.serde": serde}
    for given in ({f"default.{kind}.exception.handler": old}, {f"{kind}.exception.handler": new}):
        config |= given
        with TopologyTestDriver(builder.build(), config) as driver:
            driver.pipe_raw("in", b"a", b"no long", 0)
    assert (old.asked, new.asked) == (1, 1)


def test_timestamp_extractor_of_all_sources():
    """`default.timestamp.extractor` is for sources that have none; Java's names are known."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    config = {"default.key.serde": "string", "default.value.serde": "string"}
    extractor = "org.apache.kafka.streams.processor.WallclockTimestampExtractor"
    for settings in (
        {"default.timestamp.extractor": lambda record, _: len(record.value)},
        {"default.timestamp.extractor": extractor},
    ):
        with TopologyTestDriver(builder.build(), config | settings, initial_wall_clock_ms=10**15) as driver:
            driver.create_input_topic("in").pipe_input("a", "four", 7)
            assert driver.create_output_topic("out").read_record().timestamp != 7
