"""Runs the examples in the docstrings of the DSL, so that each one only has to show an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.dsl import KStream, StreamsBuilder
from millrace.serdes import Serdes
from millrace.testing.driver import TopologyTestDriver

SETTINGS = {
    "application.id": "example",
    "default.key.serde": "string",
    "default.value.serde": "string",
    "statestore.cache.max.bytes": 0,
}


def run(operators: Callable[[KStream[Any, Any]], KStream[Any, Any]], *records: object) -> list[tuple[Any, Any]]:
    """Send text records through operators, and return the keys and values of the output.

    Args:
        operators: takes the input stream and returns the output stream.
        records: values, or pairs of key and value; the first has timestamp 0, each of the others 1 ms more.
    """
    builder = StreamsBuilder()
    operators(builder.stream("in")).to("out")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        source = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        sink = driver.create_output_topic("out", Serdes.string(), Serdes.string())
        for timestamp, record in enumerate(records):
            key, value = record if isinstance(record, tuple) else (None, record)
            source.pipe_input(key, value, timestamp=timestamp)
        return [(record.key, record.value) for record in sink.read_records_to_list()]
