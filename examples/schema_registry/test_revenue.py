"""What is added up, and which schemas the registry gets."""

from pathlib import Path

import pytest
from revenue import ORDERS, Order, topology

from millrace import Serdes, StreamsBuilder, TopologyTestDriver
from millrace.manifest import load, to_streams_config

TEXT = Serdes.string()


@pytest.fixture
def settings(registry):
    """The manifest's settings, with the test's registry."""
    app = load(Path(__file__).with_name("streamsapp.yaml"))
    return {**to_streams_config(app), "schema.registry.url": registry.url}


def test_orders_are_added_up(registry, settings):
    """Orders are read with their schema; the repartition topic and its subject are the application's own."""
    builder = StreamsBuilder()
    topology(builder)
    with TopologyTestDriver(builder.build(), settings) as driver:
        source = driver.create_input_topic("orders", TEXT, ORDERS)
        source.pipe_list([("o1", Order("oslo", 5)), ("o2", Order("rome", 3)), ("o3", Order("oslo", 4))])
        revenue = driver.create_output_topic("revenue", TEXT, Serdes.long()).read_key_values_to_map()
    ORDERS.client.close()
    assert revenue == {"oslo": 9, "rome": 3}
    assert set(registry.subjects) == {"orders-value", "revenue-v1-revenue-repartition-value"}
