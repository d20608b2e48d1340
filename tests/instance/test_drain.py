"""Draining: before a pod is removed for good, its instance hands its tasks to the others while its process still runs."""

from __future__ import annotations

import http.client
import itertools
import json

import pytest
from tests.instance.support import expected_counts, last_counts, produce, running, settings, word_count
from tests.waiting import wait_until

from millrace.instance import KafkaStreams, State

pytestmark = pytest.mark.broker


def ask(streams, method, path):
    """Return the status code and body of an instance's answer."""
    connection = http.client.HTTPConnection(*streams.health_address, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def member(kafka, app, tmp_path, name, **others):
    """Return the settings of a static member with two threads and a long session timeout."""
    return settings(
        kafka, app, tmp_path / name, group_instance_id=name, session_timeout_ms=120_000, num_stream_threads=2, **others
    ) | {"health.listener": "127.0.0.1:0"}


def tasks(streams):
    """Return the ids of an instance's running tasks."""
    return {task.id for task in streams.status().tasks if task.state == "RUNNING"}


def test_drained_instance_gives_its_tasks_to_the_other_and_lives_on(kafka, topic_factory, app, tmp_path):
    """A drained static member leaves for good: another has all tasks at once, and the drained one is live but not ready."""
    source, sink = topic_factory("in", partitions=4), topic_factory("out")
    everything = {"0_0", "0_1", "0_2", "0_3"}
    lines = [f"w{number % 48}" for number in range(480)]
    with (
        running(word_count(source, sink), member(kafka, app, tmp_path, "pod-0")) as stays,
        running(word_count(source, sink), member(kafka, app, tmp_path, "pod-1")) as leaves,
    ):
        wait_until(lambda: tasks(stays) and tasks(leaves) and tasks(stays) | tasks(leaves) == everything, "shared")
        produce(kafka, source, lines, partitions=4)
        wait_until(
            lambda: stays.status().processing.records + leaves.status().processing.records == len(lines), "counted"
        )
        assert leaves.drain()
        wait_until(lambda: tasks(stays) == everything, "the other has all tasks")
        wait_until(lambda: leaves.state is State.DRAINED, "drained")
        status = ask(leaves, "GET", "/status")[1]
        assert status["state"] == "DRAINED"
        assert status["group"]["state"] == "CLOSED"
        assert status["task_counts"]["active"] == 0
        assert not status["ready"]
        assert ask(leaves, "GET", "/livez")[0] == 200
        assert ask(leaves, "GET", "/readyz") == (
            503,
            {"ok": False, "state": "DRAINED", "reasons": ["the instance is DRAINED"], "warnings": []},
        )
        assert leaves.drain()
        produce(kafka, source, lines, partitions=4)
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines + lines), "the other goes on")
        assert leaves.close(60)
        assert leaves.state is State.NOT_RUNNING
        assert leaves.error is None


def test_instance_closed_while_it_drains_leaves_the_group(kafka, topic_factory, app, tmp_path):
    """A SIGTERM while draining is not treated as a rolling restart: the static member still leaves."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")
    with running(word_count(source, sink), member(kafka, app, tmp_path, "pod-0")) as stays:
        leaves = KafkaStreams(word_count(source, sink), member(kafka, app, tmp_path, "pod-1"))
        leaves.start()
        try:
            wait_until(lambda: tasks(stays) and tasks(leaves), "shared")
            assert leaves.drain()
        finally:
            assert leaves.close(60)
        wait_until(lambda: tasks(stays) == {"0_0", "0_1"}, "the other has all tasks")


def test_nothing_can_be_changed_over_http(kafka, topic_factory, app, tmp_path):
    """The port has no authentication, so clients can only read, whatever the configuration."""
    source, sink = topic_factory("in"), topic_factory("out")
    config = member(kafka, app, tmp_path, "pod-0") | {"health.drain": "true"}
    with running(word_count(source, sink), config) as streams:
        for method, path in itertools.product(("POST", "PUT", "PATCH", "DELETE"), ("/drain", "/status", "/livez")):
            connection = http.client.HTTPConnection(*streams.health_address, timeout=60)
            connection.request(method, path)
            assert connection.getresponse().status == 501
            connection.close()
        assert streams.state in (State.RUNNING, State.REBALANCING)


def test_instance_that_has_ended_cannot_be_drained(kafka, topic_factory, app, tmp_path):
    """Before the start and after the end there is nothing to drain."""
    source, sink = topic_factory("in"), topic_factory("out")
    streams = KafkaStreams(word_count(source, sink), settings(kafka, app, tmp_path))
    assert not streams.drain()
    with running(word_count(source, sink), settings(kafka, app, tmp_path)) as other:
        pass
    assert not other.drain()
    assert other.state is State.NOT_RUNNING
