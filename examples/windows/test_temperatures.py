"""When averages are sent, and which readings count."""

from pathlib import Path

import pytest
from temperatures import topology

from millrace import Serdes, StreamsBuilder, TopologyTestDriver
from millrace.manifest import load, to_streams_config

MINUTE_MS = 60_000


@pytest.fixture
def driver():
    """Run the topology with the manifest's settings."""
    builder = StreamsBuilder()
    topology(builder)
    app = load(Path(__file__).with_name("streamsapp.yaml"))
    with TopologyTestDriver(builder.build(), to_streams_config(app)) as driver:
        yield driver


def read(driver, sensor, degrees, timestamp):
    """Send a reading."""
    driver.create_input_topic("readings", Serdes.string(), Serdes.double()).pipe_input(sensor, degrees, timestamp)


def averages(driver):
    """Return the averages sent since the last call."""
    topic = driver.create_output_topic("averages", Serdes.string(), Serdes.double())
    return [tuple(each) for each in topic.read_key_values_to_list()]


def test_one_result_per_window(driver):
    """Nothing is sent until the window and its grace are over; then one average per sensor."""
    for minute, degrees in ((0, 20.0), (1, 22.0), (4, 24.0)):
        read(driver, "kitchen", degrees, minute * MINUTE_MS)
    read(driver, "cellar", 8.0, 6 * MINUTE_MS - 1)
    assert averages(driver) == []
    read(driver, "cellar", 9.0, 6 * MINUTE_MS)
    assert averages(driver) == [("kitchen@0", 22.0)]


def test_late_readings(driver):
    """A late reading counts during the grace period, and is dropped after it."""
    read(driver, "kitchen", 20.0, 0)
    read(driver, "cellar", 8.0, 6 * MINUTE_MS - 1)
    read(driver, "kitchen", 30.0, 1)
    read(driver, "cellar", 8.0, 6 * MINUTE_MS)
    read(driver, "kitchen", 99.0, 2)
    assert averages(driver) == [("kitchen@0", 25.0)]
    assert driver.dropped_records == 1
