"""Applications with `group.protocol=streams` (KIP-1071): brokers assign the tasks and create the internal topics."""

from __future__ import annotations

import secrets

import pytest
from tests.instance.support import (
    expected_counts,
    last_counts,
    produce,
    read_all,
    running,
    settings,
    two_step_word_count,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def app():
    """Return a new application id."""
    return f"app-{secrets.token_hex(4)}"


def running_tasks(streams):
    """Return the ids of an instance's running tasks."""
    return sorted(str(task.id) for task in streams.status().tasks if task.state == "RUNNING")


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_tasks_move_with_nothing_lost_or_repeated(kafka, topic_factory, app, tmp_path, guarantee):
    """While a second instance joins and leaves again, every word is counted once."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out", partitions=1)
    config = settings(kafka, app, tmp_path / "a", group_protocol="streams", processing_guarantee=guarantee)
    lines = ["a b", "b c d"] * 50
    with running(two_step_word_count(source, sink), config) as first:
        wait_until(lambda: len(running_tasks(first)) == 4, "all tasks")
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines), "counted")
        other = settings(kafka, app, tmp_path / "b", group_protocol="streams", processing_guarantee=guarantee)
        with running(two_step_word_count(source, sink), other) as second:
            produce(kafka, source, lines, partitions=2)
            wait_until(lambda: len(running_tasks(first)) == len(running_tasks(second)) == 2, "two tasks each")
            produce(kafka, source, lines, partitions=2)
            wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines * 3), "counted")
        produce(kafka, source, lines, partitions=2)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines * 4), "counted")
        assert len(running_tasks(first)) == 4
        assert len(read_all(kafka, sink)) == 4 * 50 * 5
