"""Probes of a running instance on a real broker: what makes them fail, what does not, and how they recover."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import secrets
import threading
import time

import pytest
from tests.brokers import new_topic
from tests.instance.support import (
    NUMBER,
    TEXT,
    Replica,
    expected_counts,
    last_counts,
    produce,
    running,
    settings,
    word_count,
)
from tests.waiting import PATIENCE_S, wait_until

from millrace.instance import KafkaStreams, State, UncaughtExceptionResponse
from millrace.processor.api import Processor
from millrace.topology import Topology

pytestmark = pytest.mark.broker
MAX_POLL_MS = 1500


def get(address, path):
    """Return status code and body, or (0, None) while nobody listens."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except ConnectionError:
        return 0, None
    finally:
        connection.close()


def code(streams, path):
    """Return the status code of an instance's probe."""
    return get(streams.health_address, path)[0]


def listening(kafka, app, tmp_path, **others):
    """Return settings with probes on an unused port."""
    return settings(kafka, app, tmp_path, **others) | {"health.listener": "127.0.0.1:0"}


class Hold:
    """Blocks a restoration after its first batch."""

    def __init__(self):
        self.held, self.go_on = threading.Event(), threading.Event()

    def on_restore_start(self, partition, store, start_offset, end_offset):
        """Nothing to do."""

    def on_batch_restored(self, partition, store, batch_end_offset, restored):
        """Wait for the test."""
        self.held.set()
        self.go_on.wait(PATIENCE_S)

    def on_restore_end(self, partition, store, total_restored):
        """Nothing to do."""

    def on_restore_suspended(self, partition, store, total_restored):
        """Nothing to do."""


def test_restoring_is_started_and_live_but_not_ready(kafka, topic_factory, app, tmp_path):
    """A restoration longer than max.poll.interval.ms fails only readiness; when it ends, the instance is ready."""
    source, sink = topic_factory("in"), topic_factory("out")
    lines = [f"w{number % 500}" for number in range(6000)]
    produce(kafka, source, lines)
    with running(word_count(source, sink), settings(kafka, app, tmp_path / "first")):
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines), "counted")
    config = listening(kafka, app, tmp_path / "second", max_poll_interval_ms=3000)
    streams, hold = KafkaStreams(word_count(source, sink), config), Hold()
    streams.set_restore_listener(hold)
    assert streams.health_address is None
    streams.start()
    try:
        wait_until(lambda: code(streams, "/livez") == 200, "live")
        assert hold.held.wait(PATIENCE_S)
        wait_until(lambda: code(streams, "/startedz") == 200, "started")
        until = time.monotonic() + 3.5
        wait_until(lambda: time.monotonic() > until, "longer than a round may take")
        wait_until(lambda: code(streams, "/livez") == 200, "live all the same")
        answer, body = get(streams.health_address, "/readyz")
        assert answer == 503
        status = get(streams.health_address, "/status")[1]
        (task,) = status["tasks"]
        assert (task["id"], task["role"], task["state"]) == ("0_0", "active", "RESTORING")
        assert 0 < task["remaining"] == status["restoration"]["remaining_records"] < 6000
        assert f"task 0_0 is RESTORING, {task['remaining']} changelog records left" in body["reasons"]
        hold.go_on.set()
        wait_until(lambda: code(streams, "/readyz") == 200, "ready")
        status = get(streams.health_address, "/status")[1]
        assert [(task["state"], task["remaining"]) for task in status["tasks"]] == [("RUNNING", 0)]
        assert status["state"] == "RUNNING"
        assert status["application_id"] == app
        assert len(status["topology_hash"]) == 64
        assert status["version"]
        (thread,) = status["threads"]
        assert thread["generation"] >= 1
        assert thread["member_id"]
        assert thread["commit_age_ms"] is None or thread["commit_age_ms"] < 60_000
    finally:
        hold.go_on.set()
        address = streams.health_address
        assert streams.close(60)
    assert streams.health_address is None
    assert get(address, "/livez") == (0, None)


class Stoppable(Processor):
    """Blocks on the record `wait` until released; fails on the record `fail`."""

    waiting, go_on = threading.Semaphore(0), threading.Event()

    def process(self, record):
        """Wait, fail, or forward."""
        if record.value == "wait":
            self.waiting.release()
            self.go_on.wait(PATIENCE_S)
        elif record.value == "fail":
            raise RuntimeError("asked to fail")
        self.context.forward(record)


def stoppable_topology(source, sink):
    """Return a topology with a processor that can be blocked."""
    return (
        Topology()
        .add_source("in", source, key_serde=TEXT, value_serde=TEXT)
        .add_processor("stoppable", Stoppable, "in")
        .add_sink("out", sink, "stoppable", key_serde=NUMBER, value_serde=TEXT)
    )


@pytest.fixture
def held_back():
    """Block processors until the test releases them or ends."""
    Stoppable.waiting = threading.Semaphore(0)
    Stoppable.go_on.clear()
    yield
    Stoppable.go_on.set()


@pytest.fixture
def stoppable(topic_factory, held_back):
    """Yield a topology with a processor that can be blocked, and its input topic."""
    source, sink = topic_factory("in"), topic_factory("out")
    return stoppable_topology(source, sink), source


def test_stuck_processor_fails_liveness_until_it_continues(kafka, stoppable, app, tmp_path):
    """A processor that takes longer than max.poll.interval.ms gives 503 with its thread; then all probes pass again."""
    topology, source = stoppable
    with running(topology, listening(kafka, app, tmp_path, max_poll_interval_ms=MAX_POLL_MS)) as streams:
        wait_until(lambda: code(streams, "/readyz") == 200, "ready")
        wait_until(lambda: code(streams, "/livez") == 200, "live")
        produce(kafka, source, ["wait"])
        assert Stoppable.waiting.acquire(timeout=PATIENCE_S)
        wait_until(lambda: code(streams, "/livez") == 503, "found stuck")
        (reason,) = get(streams.health_address, "/livez")[1]["reasons"]
        assert streams.threads[0].name in reason
        assert f"max.poll.interval.ms={MAX_POLL_MS}" in reason
        assert code(streams, "/startedz") == 200
        assert get(streams.health_address, "/status")[1]["threads"][0]["progress_age_ms"] > MAX_POLL_MS
        Stoppable.go_on.set()
        wait_until(lambda: code(streams, "/livez") == 200, "live again")
        wait_until(lambda: code(streams, "/readyz") == 200, "ready again")


def test_failed_instance_says_so_until_it_is_closed(kafka, stoppable, app, tmp_path):
    """An instance that ended with an error answers 503 with that error, for whoever decides whether to restart it."""
    topology, source = stoppable
    with running(topology, listening(kafka, app, tmp_path)) as streams:
        produce(kafka, source, ["fail"])
        wait_until(lambda: streams.state is State.ERROR, "failed")
        answer, body = get(streams.health_address, "/livez")
        assert answer == 503
        assert "asked to fail" in body["reasons"][0]
        assert code(streams, "/readyz") == 503
        address = streams.health_address
    assert get(address, "/livez") == (0, None)


def test_replaced_thread_is_no_reason_to_restart(kafka, stoppable, app, tmp_path):
    """While a dead thread is being replaced the instance stays live and started, and is ready afterwards."""
    topology, source = stoppable
    streams = KafkaStreams(topology, listening(kafka, app, tmp_path))
    streams.set_uncaught_exception_handler(lambda _: UncaughtExceptionResponse.REPLACE_THREAD)
    streams.start()
    try:
        wait_until(lambda: code(streams, "/readyz") == 200, "ready")
        first = streams.threads[0]
        produce(kafka, source, ["fail"])
        codes = set()

        def replaced():
            codes.update((code(streams, "/livez"), code(streams, "/startedz")))
            return streams.threads[0] is not first

        wait_until(replaced, "replaced")
        assert codes == {200}
    finally:
        streams.close(60)


def test_status_does_not_wait_for_a_listener(kafka, topic_factory, app, tmp_path):
    """A state listener that hangs blocks its thread, but not the answers."""
    source, sink = topic_factory("in"), topic_factory("out")
    streams = KafkaStreams(word_count(source, sink), listening(kafka, app, tmp_path, max_poll_interval_ms=MAX_POLL_MS))
    hangs, go_on = threading.Event(), threading.Event()

    def listener(new, old):
        if new is State.RUNNING:
            hangs.set()
            go_on.wait(PATIENCE_S)

    streams.set_state_listener(listener)
    streams.start()
    try:
        assert hangs.wait(PATIENCE_S)
        assert get(streams.health_address, "/status")[1]["state"] == "RUNNING"
        wait_until(lambda: code(streams, "/livez") == 503, "found stuck")
        go_on.set()
        wait_until(lambda: code(streams, "/livez") == 200, "live again")
    finally:
        go_on.set()
        streams.close(60)


def test_sigterm_ends_the_probes_with_the_process(kafka, topic_factory, app, tmp_path):
    """A process answers probes while it runs; after SIGTERM it stops listening and exits with 0."""
    source, sink = topic_factory("in"), topic_factory("out")
    replica = Replica(listening(kafka, app, tmp_path), source, sink, tmp_path, "probed").start()
    try:
        served = wait_until(lambda: re.search(r"served on http://(.+):(\d+)\n", replica.log()), "the probes' address")
        address = served[1], int(served[2])
        wait_until(lambda: get(address, "/readyz")[0] == 200, lambda: f"ready: {replica.log()[-3000:]}")
        assert get(address, "/livez")[0] == 200
        assert replica.stop() == 0
        assert get(address, "/livez") == (0, None)
    finally:
        if replica.process.poll() is None:
            replica.kill()


def test_broker_that_does_not_answer_is_no_reason_to_restart(breakable_kafka, held_back, tmp_path):
    """A commit that waits for a broker longer than max.poll.interval.ms leaves the instance live, and the status says why."""
    kafka, source = breakable_kafka, new_topic(breakable_kafka)
    limit_ms = 4000
    with contextlib.ExitStack() as stack:
        instances = []
        for guarantee in ("at_least_once", "exactly_once_v2"):
            sink, app = new_topic(kafka, "out"), f"app-{secrets.token_hex(4)}"
            config = listening(kafka, app, tmp_path / guarantee, processing_guarantee=guarantee)
            config["max.poll.interval.ms"] = limit_ms
            instances.append(stack.enter_context(running(stoppable_topology(source, sink), config)))

        def threads():
            return [get(streams.health_address, "/status")[1]["threads"][0] for streams in instances]

        produce(kafka, source, ["wait"])
        for _ in instances:
            assert Stoppable.waiting.acquire(timeout=PATIENCE_S)
        kafka.pause()
        try:
            Stoppable.go_on.set()
            wait_until(lambda: all(thread["waits_for"] for thread in threads()), "both commit")
            waited = set()

            def all_waited_long():
                assert [code(streams, "/livez") for streams in instances] == [200, 200]
                waited.update(
                    thread["name"]
                    for thread in threads()
                    if thread["waits_for"] and thread["progress_age_ms"] > limit_ms
                )
                return len(waited) == 2

            wait_until(all_waited_long, "longer than a round may take")
        finally:
            kafka.resume()
        wait_until(lambda: [code(streams, "/readyz") for streams in instances] == [200, 200], "ready again")
