"""Which devices are reported, and when."""

from pathlib import Path

import pytest
from silence import topology

from millrace import Serdes, StreamsBuilder, TopologyTestDriver
from millrace.manifest import load, to_streams_config

TEXT = Serdes.string()
SECOND_MS = 1_000


@pytest.fixture
def driver():
    """Run the topology with the manifest's settings."""
    builder = StreamsBuilder()
    topology(builder)
    app = load(Path(__file__).with_name("streamsapp.yaml"))
    with TopologyTestDriver(builder.build(), to_streams_config(app)) as driver:
        yield driver


def beat(driver, device):
    """Send a heartbeat."""
    driver.create_input_topic("heartbeats", TEXT, TEXT).pipe_input(device, "alive")


def reports(driver):
    """Return the reports since the last call."""
    return [tuple(each) for each in driver.create_output_topic("reports", TEXT, TEXT).read_key_values_to_list()]


def test_silent_device_is_reported_once(driver):
    """After a minute without a heartbeat there is one report; a device that was heard of meanwhile has none."""
    beat(driver, "pump")
    beat(driver, "fan")
    driver.advance_wall_clock_time(30 * SECOND_MS)
    beat(driver, "fan")
    driver.advance_wall_clock_time(20 * SECOND_MS)
    assert reports(driver) == []
    driver.advance_wall_clock_time(10 * SECOND_MS)
    assert reports(driver) == [("pump", "silent")]
    driver.advance_wall_clock_time(10 * SECOND_MS)
    assert reports(driver) == []


def test_device_that_comes_back(driver):
    """The first heartbeat after a report is reported, and the minute begins again."""
    beat(driver, "pump")
    driver.advance_wall_clock_time(60 * SECOND_MS)
    beat(driver, "pump")
    beat(driver, "pump")
    driver.advance_wall_clock_time(60 * SECOND_MS)
    assert reports(driver) == [("pump", "silent"), ("pump", "back"), ("pump", "silent")]
