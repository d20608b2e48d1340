"""What happens to transfers that are wrong."""

from pathlib import Path

import pytest
from transfers import topology

from millrace import Serdes, StreamsBuilder, TopologyTestDriver
from millrace.manifest import load, to_streams_config

TEXT = Serdes.string()


@pytest.fixture
def driver():
    """Run the topology with the manifest's settings, and pipe four transfers, of which two are wrong."""
    builder = StreamsBuilder()
    topology(builder)
    app = load(Path(__file__).with_name("streamsapp.yaml"))
    with TopologyTestDriver(builder.build(), to_streams_config(app)) as driver:
        transfers = driver.create_input_topic("transfers", TEXT, TEXT)
        for value in ('{"cents": 5}', "five", '{"cents": -1}', '{"cents": 7}'):
            transfers.pipe_input("ada", value, 1_000, [("trace", b"t1")])
        yield driver


def test_others_are_counted(driver):
    """The balance has every transfer that is right."""
    balances = driver.create_output_topic("balances", TEXT, Serdes.long()).read_values_to_list()
    assert balances == [5, 12]


def test_dead_letters_are_what_came_in(driver):
    """A dead letter has the record's key, value, timestamp and headers as they arrived."""
    letters = driver.create_output_topic("transfers.failed", TEXT, TEXT).read_records_to_list()
    assert [(letter.key, letter.value) for letter in letters] == [("ada", "five"), ("ada", '{"cents": -1}')]
    assert [(letter.timestamp, letter.headers.last("trace")) for letter in letters] == [(1_000, b"t1")] * 2


def test_dead_letters_say_what_was_wrong(driver):
    """Headers name the exception, its message, and where the record was."""
    unread, refused = driver.create_output_topic("transfers.failed", TEXT, TEXT).read_records_to_list()
    assert unread.headers.last("__streams.errors.exception") == b"millrace.errors.SerializationError"
    assert refused.headers.last("__streams.errors.message") == b"account ada cannot receive -1 cents"
    where = [refused.headers.last(f"__streams.errors.{part}") for part in ("topic", "partition", "offset")]
    assert where == [b"transfers", b"0", b"2"]
