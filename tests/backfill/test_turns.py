"""Turns of a task: what it does between two records depends on its records alone, and what it holds until then is limited.

Spark may run a task again, and use some of its rows of both runs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.backfill.support import (
    SETTINGS,
    Engine,
    Partitions,
    differences,
    packed_rows,
    run_without_spark,
    single_rows,
)

from millrace.backfill.collector import Outputs
from millrace.backfill.history import Backfill
from millrace.processor.api import Processor, PunctuationType, Record
from millrace.topology import Topology


class SchedulesLater(Processor):
    """Begins to punctuate in the middle of its records."""

    def init(self, context):
        """Begin to count."""
        super().init(context)
        self.count = 0

    def process(self, record):
        """Count it, and schedule at some of them."""
        self.count += 1
        if record.value == "at once":
            self.context.schedule(20, PunctuationType.STREAM_TIME, self.tell)
        elif record.value == "later":
            at = self.context.current_stream_time_ms() + 5
            self.context.schedule(1_000, PunctuationType.STREAM_TIME, self.tell, start_ms=at)
        self.context.forward(record)

    def tell(self, timestamp):
        """Forward how many there were."""
        self.context.forward(Record("count", str(self.count), timestamp))


def punctuated(*topics):
    """Return a function that makes a topology of such a processor."""
    return lambda: (
        Topology()
        .add_source("source", *topics)
        .add_processor("later", SchedulesLater, "source")
        .add_sink("sink", "out", "later")
    )


@pytest.mark.parametrize("topics", [("a",), ("a", "b"), ("a", "b", "c")])
@pytest.mark.parametrize("value", ["at once", "later"])
def test_punctuators_that_are_scheduled_in_the_middle(topics, value):
    """They are called after the same records, however these come in batches."""
    values = {40: value, 90: value}
    records = [(topics[n % len(topics)], b"k", values.get(n, "v").encode(), n, ()) for n in range(200)]
    history = Partitions.of(records, {**dict.fromkeys(topics, 1), "out": 1})
    topology = punctuated(*topics)
    found = []
    for batch in (7, 300):
        backfill = Backfill(topology, SETTINGS, replace(history, batch=batch), outputs=Outputs.ALL)
        assert differences(Engine(topology, SETTINGS, history).run(), run_without_spark(backfill)) == []
        rows = packed_rows(backfill)
        sent = [row for row in single_rows(rows) if row.topic == "out"]
        counts = [(row.timestamp, row.value) for row in sent if row.key == b"count"]
        assert counts[0] == ((40, b"41") if value == "at once" else (45, b"46"))
        found.append((sent, [(row.number, row.packed) for row in rows if row.topic == "out"]))
    assert found[0] == found[1]
