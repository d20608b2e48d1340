"""The metrics of a task and its nodes, under Java's names."""

from __future__ import annotations

from millrace.dsl import BufferConfig, Grouped, StreamsBuilder, Suppressed, TimeWindows
from millrace.processor import Processor, PunctuationType
from millrace.serdes import Serdes
from millrace.testing import MetricName, TopologyTestDriver

SETTINGS = {"default.key.serde": "string", "default.value.serde": "string"}
TASK, NODE = "stream-task-metrics", "stream-processor-node-metrics"


def test_driver_tells_the_totals_of_the_task():
    """Processed and dropped records, punctuations and commits are counted; a metric without a node is the task's."""

    class Punctual(Processor):
        def init(self, context):
            super().init(context)
            context.schedule(10, PunctuationType.STREAM_TIME, lambda _now: None)

        def process(self, record):
            """Do nothing."""

    builder = StreamsBuilder()
    stream = builder.stream("in")
    stream.process(Punctual)
    stream.group_by_key().count()
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        topic = driver.create_input_topic("in")
        assert driver.metrics()[MetricName(TASK, "process-total")] == 0
        topic.pipe_input("k", "v", timestamp=0)
        topic.pipe_input(None, "v", timestamp=25)
        metrics = driver.metrics()
        assert metrics[TASK, "process-total", None] == 2
        assert metrics[TASK, "dropped-records-total", None] == 1 == driver.dropped_records
        assert metrics[TASK, "punctuate-total", None] == 2
        assert metrics[TASK, "commit-total", None] == 2
        assert metrics[TASK, "active-buffer-count", None] == 0


def test_driver_tells_the_totals_of_nodes():
    """Each node that measures something has its own metric."""
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_with_no_grace(10)
    grouped = builder.stream("in").group_by_key(Grouped.with_(Serdes.string(), Serdes.string()))
    grouped.windowed_by(windows).count().suppress(
        Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("final")
    ).to_stream()
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", "v", timestamp=0)
        name = MetricName(NODE, "suppression-emit-total", "final")
        assert name not in driver.metrics()
        topic.pipe_input("k", "v", timestamp=10)
        assert driver.metrics()[name] == 1
