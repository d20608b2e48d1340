"""Tools for testing topologies and processors: a driver, its topics, and a context that records what a processor does."""

from millrace.engine.task_metrics import MetricName
from millrace.testing.driver import TopologyTestDriver
from millrace.testing.mock_context import CapturedForward, CapturedPunctuator, MockProcessorContext
from millrace.testing.output_collector import ProducedRecord
from millrace.testing.topics import TestInputTopic, TestOutputTopic

__all__ = [
    "CapturedForward",
    "CapturedPunctuator",
    "MetricName",
    "MockProcessorContext",
    "ProducedRecord",
    "TestInputTopic",
    "TestOutputTopic",
    "TopologyTestDriver",
]
