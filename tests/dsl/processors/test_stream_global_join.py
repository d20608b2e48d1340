"""Joins of a stream with a global table."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.dsl.processors.stateless import pass_through
from millrace.dsl.processors.stream_table_join import StreamGlobalTableJoin
from millrace.dsl.processors.table_operators import TableSourceProcessor
from millrace.dsl.processors.tables import store_view
from millrace.errors import FailedProcessingError
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.testing import TopologyTestDriver
from millrace.topology import Topology
from millrace.topology.builder import TopologyBuilder
from millrace.topology.physical_topology import SinkNode, SourceNode

SETTINGS = {"default.key.serde": "string", "default.value.serde": "string"}


def first_letter(_key: str | None, value: str | None) -> str | None:
    """Map a record to the key for its value's first letter; `?` has no key."""
    if value == "bad":
        raise ValueError("no good")
    return None if value is None or value.startswith("?") else value[0]


def topology(*, left: bool) -> Topology:
    """Return a join of topic `in` with global table `global`, to topic `out`."""
    builder = TopologyBuilder()
    builder.add_source(SourceNode("in", ("in",)))
    supplier = Stores.in_memory_key_value_store("g")
    builder.add_global_store(
        Stores.timestamped_key_value_store_builder(supplier, Serdes.string(), Serdes.string()).with_logging_disabled(),
        source=SourceNode("global", ("global",)),
        processor_name="g-source",
        factory=TableSourceProcessor("g", materialized=True, on_materialize=lambda: None),
    )
    join = StreamGlobalTableJoin(
        view=store_view("g"),
        key_mapper=first_letter,
        joiner=lambda key, value, found: f"{key}:{value}/{found}",
        left=left,
    )
    builder.add_processor("join", join, ("in",))
    builder.add_processor("pass", pass_through(), ("join",))
    builder.add_sink(SinkNode("out", ("pass",), "out"))
    return Topology(builder)


def results(driver: TopologyTestDriver, *records: tuple[Any, Any]) -> list[Any]:
    """Pipe records and return the values that came out."""
    topic = driver.create_input_topic("in")
    for key, value in records:
        topic.pipe_input(key, value, 1)
    return driver.create_output_topic("out").read_values_to_list()


def test_a_record_is_joined_by_the_key_it_is_mapped_to() -> None:
    """It keeps its own key, which may even be None. Without a match an inner join forwards nothing."""
    with TopologyTestDriver(topology(left=False), SETTINGS) as driver:
        driver.create_input_topic("global").pipe_input("a", "v", 1)
        assert results(driver, ("k", "apple"), ("k", "bear"), (None, "ant")) == ["k:apple/v", "None:ant/v"]
        assert driver.dropped_records == 0


def test_a_left_join_sends_records_without_a_match_or_a_mapped_key() -> None:
    """KIP-962: a mapped key of None is joined with None."""
    with TopologyTestDriver(topology(left=True), SETTINGS) as driver:
        assert results(driver, ("k", "apple"), ("k", "?"), (None, "b")) == [
            "k:apple/None",
            "k:?/None",
            "None:b/None",
        ]


def test_what_cannot_be_joined_is_dropped() -> None:
    """Records without a value in every join; in an inner join also records whose mapped key is None."""
    with TopologyTestDriver(topology(left=False), SETTINGS) as driver:
        assert results(driver, ("k", None), ("k", "?")) == []
        assert driver.dropped_records == 2
    with TopologyTestDriver(topology(left=True), SETTINGS) as driver:
        assert results(driver, ("k", None)) == []
        assert driver.dropped_records == 1


def test_a_failing_key_mapper_is_reported_with_its_node() -> None:
    """Exceptions of user code go to the processing exception handler."""
    driver = TopologyTestDriver(topology(left=True), SETTINGS)
    with pytest.raises(FailedProcessingError, match="node join failed"):
        results(driver, ("k", "bad"))
    driver.abandon()
