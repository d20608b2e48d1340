"""The mock context records what a processor requests."""

from __future__ import annotations

import pytest

from millrace.errors import ConfigError, TopologyError
from millrace.processor.api import Processor, PunctuationType
from millrace.records import Record
from millrace.serdes import Serdes
from millrace.state import Stores
from millrace.testing import MockProcessorContext


class Busy(Processor):
    """Uses a little of everything."""

    def init(self, context):
        """Schedule."""
        super().init(context)
        self.handle = context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self.tick, start_ms=5)

    def tick(self, ts):
        """Forward and cancel."""
        self.context.forward(Record("tick", ts, ts))
        self.handle.cancel()

    def process(self, record):
        """Store, forward to one child and to all, request a commit."""
        self.context.get_state_store("s").put(record.key, record.value)
        self.context.forward(record, "left")
        self.context.forward(record.with_value(self.context.record_metadata))
        self.context.commit()


@pytest.fixture
def context(tmp_path):
    """Return a context with a store."""
    context = MockProcessorContext(state_dir=tmp_path)
    supplier = Stores.persistent_key_value_store("s")
    context.add_state_store(Stores.key_value_store_builder(supplier, Serdes.string(), Serdes.string()).build())
    yield context
    context.get_state_store("s").close()


def test_forwards_commits_and_stores_are_seen(context):
    """Forwards are recorded with their child, commits set a flag, and stores work."""
    processor = Busy()
    processor.init(context)
    context.set_record_metadata("in", 1, 2)
    processor.process(Record("k", "v", 3))
    assert [(item.record.value, item.child) for item in context.forwarded()] == [("v", "left"), (("in", 1, 2), None)]
    assert len(context.forwarded("left")) == 2
    assert len(context.forwarded("right")) == 1
    assert context.get_state_store("s").get("k") == "v"
    assert context.committed
    context.reset_commit()
    context.reset_forwards()
    assert not context.committed
    assert context.forwarded() == []


def test_punctuators_are_captured_for_the_test_to_call(context):
    """A schedule is recorded with all its arguments, and can be called and cancelled."""
    processor = Busy()
    processor.init(context)
    (captured,) = context.scheduled_punctuators
    assert (captured.interval_ms, captured.type, captured.start_ms) == (10, PunctuationType.WALL_CLOCK_TIME, 5)
    captured.punctuator(77)
    assert context.forwarded()[0].record == Record("tick", 77, 77)
    assert captured.cancelled


def test_times_are_what_the_test_sets(context):
    """The processor sees the times that the test sets."""
    context.set_current_system_time_ms(5)
    context.set_current_stream_time_ms(6)
    assert (context.current_system_time_ms(), context.current_stream_time_ms()) == (5, 6)


def test_missing_store_and_serde_are_explained(context):
    """The error for anything missing names it, and says how to provide it."""
    with pytest.raises(TopologyError, match="add_state_store"):
        context.get_state_store("other")
    with pytest.raises(ConfigError, match=r"default\.key\.serde"):
        _ = context.key_serde
