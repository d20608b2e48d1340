"""The test driver behaves like Kafka Streams'."""

from __future__ import annotations

import pytest

from millrace.errors import FailedProcessingError, InvalidStateStoreError, TopologyError
from millrace.processor.api import Processor, PunctuationType
from millrace.records import Record
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.testing import TopologyTestDriver
from millrace.topology import Topology

CONFIG = {"application.id": "app", "default.key.serde": "string", "default.value.serde": "string"}


class Counter(Processor):
    """Counts per key in the store `counts`."""

    def process(self, record):
        """Count one, and forward the count."""
        store = self.context.get_state_store("counts")
        count = (store.get(record.key) or 0) + 1
        store.put(record.key, count)
        self.context.forward(record.with_value(str(count)))


def counting(*, cached=False):
    """Return a counting topology."""
    store = Stores.key_value_store_builder(Stores.persistent_key_value_store("counts"), Serdes.string(), Serdes.long())
    if cached:
        store = store.with_caching_enabled()
    topology = Topology().add_source("src", "in").add_processor("count", Counter, "src")
    return topology.add_state_store(store, "count").add_sink("snk", "out", "count")


def test_output_is_there_when_pipe_returns():
    """Piping is synchronous: when it returns, results, changelog records and stores are complete."""
    with TopologyTestDriver(counting(), CONFIG) as driver:
        source, out = driver.create_input_topic("in"), driver.create_output_topic("out")
        source.pipe_list([("a", "x"), ("b", "x"), ("a", "x")])
        assert out.read_key_values_to_list() == [("a", "1"), ("b", "1"), ("a", "2")]
        assert driver.get_key_value_store("counts").get("a") == 2
        assert driver.produced_topic_names() == {"out", "app-counts-changelog"}
        changelog = driver.create_output_topic("app-counts-changelog", Serdes.string(), Serdes.long())
        assert changelog.read_key_values_to_map() == {"a": 2, "b": 1}


def test_deferred_commit_shows_what_the_cache_holds_back():
    """Without auto_commit, a cached store's changelog records are only sent with the commit, deduplicated."""
    with TopologyTestDriver(counting(cached=True), CONFIG, auto_commit=False) as driver:
        changelog = driver.create_output_topic("app-counts-changelog", Serdes.string(), Serdes.long())
        driver.create_input_topic("in").pipe_list([("a", "x"), ("a", "x")])
        assert changelog.is_empty()
        driver.commit()
        assert changelog.read_key_values_to_list() == [("a", 2)]


def test_topics_that_are_read_again_are_looped_back():
    """What is sent to a topic that the topology reads is processed before pipe returns."""

    class Countdown(Processor):
        def process(self, record):
            if record.value != "0":
                self.context.forward(record.with_value(str(int(record.value) - 1)))

    topology = Topology().add_source("src", "in").add_processor("p", Countdown, "src").add_sink("snk", "in", "p")
    with TopologyTestDriver(topology, CONFIG) as driver:
        driver.create_input_topic("in").pipe_input("k", "3", 7)
        records = driver.create_output_topic("in").read_records_to_list()
    assert [(record.value, record.timestamp) for record in records] == [("2", 7), ("1", 7), ("0", 7)]


@pytest.mark.parametrize("inputs", [("in",), ("in", "other")])
def test_dead_letter_is_there_when_pipe_returns(inputs):
    """An unreadable record is handled at once, even if it is the last one and the task has another input."""
    longs = Serdes.long()
    topology = Topology().add_source("src", *inputs, value_serde=longs).add_sink("snk", "out", "src", value_serde=longs)
    topology.add_source("letters", "dlq").add_sink("copy", "copied", "letters")
    config = {
        **CONFIG,
        "deserialization.exception.handler": "LogAndContinueExceptionHandler",
        "errors.dead.letter.queue.topic.name": "dlq",
    }
    with TopologyTestDriver(topology, config) as driver:
        driver.create_input_topic("in", value_serde=Serdes.string()).pipe_input("k", "no long", timestamp=5)
        assert driver.dropped_records == 1
        assert driver.create_output_topic("dlq").read_key_values_to_list() == [("k", "no long")]
        assert driver.create_output_topic("copied").read_key_values_to_list() == [("k", "no long")]


def test_wall_clock_moves_only_when_the_test_advances_it():
    """Wall-clock punctuators fire in advance_wall_clock_time, once per call."""

    class Ticking(Processor):
        def init(self, context):
            context.schedule(10, PunctuationType.WALL_CLOCK_TIME, lambda ts: context.forward(Record("t", str(ts), ts)))

        def process(self, record):
            pass

    topology = Topology().add_source("src", "in").add_processor("p", Ticking, "src").add_sink("snk", "out", "p")
    with TopologyTestDriver(topology, CONFIG, initial_wall_clock_ms=1000) as driver:
        out = driver.create_output_topic("out")
        driver.create_input_topic("in").pipe_input("k", "v")
        assert out.is_empty()
        driver.advance_wall_clock_time(9)
        assert out.is_empty()
        driver.advance_wall_clock_time(26)
        assert out.read_value() == "1035"
        assert driver.wall_clock_ms == 1035


def test_global_store_is_filled_at_once():
    """Records of a global store's topic reach it when they are piped, and all processors can read it."""

    class Fill(Processor):
        def process(self, record):
            self.context.get_state_store("gs").put(record.key, record.value)

    class Look(Processor):
        def process(self, record):
            self.context.forward(record.with_value(self.context.get_state_store("gs").get(record.value)))

    store = Stores.key_value_store_builder(Stores.in_memory_key_value_store("gs"), Serdes.string(), Serdes.string())
    topology = (
        Topology()
        .add_global_store(store.with_logging_disabled(), "gsrc", "g", "gproc", Fill)
        .add_source("src", "in")
        .add_processor("look", Look, "src")
        .add_sink("snk", "out", "look")
    )
    with TopologyTestDriver(topology, CONFIG) as driver:
        driver.create_input_topic("g").pipe_input("x", "global")
        driver.create_input_topic("in").pipe_input("k", "x")
        assert driver.create_output_topic("out").read_value() == "global"
        assert driver.get_state_store("gs").get("x") == "global"


def test_unknown_topic_lists_those_that_are_read():
    """The error for piping into a topic that is not read lists the input topics."""
    with TopologyTestDriver(counting(), CONFIG) as driver, pytest.raises(TopologyError, match="input topics: in"):
        driver.create_input_topic("other").pipe_input("k", "v")


def test_unknown_or_other_store_is_explained():
    """The error for a store of the wrong name or kind lists the existing stores."""
    with TopologyTestDriver(counting(), CONFIG) as driver:
        assert driver.get_state_store("nope") is None
        with pytest.raises(InvalidStateStoreError, match=r"'nope'.*counts"):
            driver.get_key_value_store("nope")
        with pytest.raises(InvalidStateStoreError, match="not a session store"):
            driver.get_session_store("counts")
        with pytest.raises(InvalidStateStoreError, match=r"'counts' is a .*KeyValueStore, not a versioned store"):
            driver.get_versioned_key_value_store("counts")


def test_failure_surfaces_from_pipe():
    """The call that piped the record raises a processor's exception."""

    class Bad(Processor):
        def process(self, record):
            raise ValueError("boom")

    topology = Topology().add_source("src", "in").add_processor("p", Bad, "src")
    with pytest.raises(FailedProcessingError, match="boom"), TopologyTestDriver(topology, CONFIG) as driver:
        driver.create_input_topic("in").pipe_input("k", "v")


def test_state_directory_is_gone_after_close():
    """The driver's directory exists while it runs; close deletes it, also after a failure."""
    driver = TopologyTestDriver(counting(), CONFIG)
    directory = driver._directory
    assert directory.is_dir()
    driver.close()
    assert not directory.exists()
    driver.close()
    assert repr(driver) == "<TopologyTestDriver, closed>"


def test_repr_tells_where_the_driver_is():
    """In a notebook the driver shows its clocks, its stores, and the output that was not read yet."""
    with TopologyTestDriver(counting(), CONFIG) as driver:
        driver.create_input_topic("in").pipe_input("a", "x", 5)
        text = repr(driver)
        assert "stream time 5 ms" in text
        assert "stores counts" in text
        assert "out (1)" in text
        assert repr(driver.create_output_topic("out")) == "<output topic out: 1 records to read>\n  'a' → '1' @ 5"


def test_subtopologies_run_as_one_task():
    """Independent sub-topologies share one task with its stream time and clock."""
    topology = Topology()
    for name in "ab":
        topology.add_source(f"src-{name}", name).add_sink(f"snk-{name}", f"out-{name}", f"src-{name}")
    with TopologyTestDriver(topology, CONFIG) as driver:
        driver.create_input_topic("a").pipe_input("k", "1", 50)
        driver.create_input_topic("b").pipe_input("k", "2", 10)
        assert driver.task.stream_time == 50
        assert driver.create_output_topic("out-b").read_record().timestamp == 10


def test_topics_of_a_pattern_are_read_from_the_first_record():
    """A source with a pattern reads any matching topic, once something is piped or sent to it."""
    topology = Topology().add_source("src", pattern="in-[ab]").add_sink("snk", "out", "src")
    with TopologyTestDriver(topology, CONFIG) as driver:
        for name in ("in-a", "in-b"):
            driver.create_input_topic(name).pipe_input("k", name)
        assert driver.create_output_topic("out").read_values_to_list() == ["in-a", "in-b"]
        with pytest.raises(TopologyError, match="does not read topic 'in-c'"):
            driver.create_input_topic("in-c").pipe_input("k", "v")


def test_dead_letter_of_the_only_record_is_there():
    """A dropped record's dead letter is sent at once, even if several topics are read and no record follows."""
    topology = Topology().add_source("src", "a", "b", value_serde=Serdes.long()).add_sink("snk", "out", "src")
    config = CONFIG | {
        "deserialization.exception.handler": "LogAndContinueExceptionHandler",
        "errors.dead.letter.queue.topic.name": "dlq",
    }
    with TopologyTestDriver(topology, config) as driver:
        driver.create_input_topic("a").pipe_input("k", "unreadable")
        assert driver.create_output_topic("dlq").read_value() == "unreadable"
        assert not driver.task.commit_needed
