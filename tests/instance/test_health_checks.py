"""What makes an instance live, started and ready, and how probes ask over HTTP; without a broker."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from dataclasses import replace

import pytest
from tests import forked
from tests.instance.support import word_count

from millrace.config import StreamsConfig
from millrace.errors import ConfigError, ListenerError
from millrace.instance import KafkaStreams
from millrace.instance.health import ProbeServer, check_live, check_ready, check_started
from millrace.instance_status import StreamsStatus, TaskStatus, ThreadStatus

LIMIT_MS = 300_000
THREAD = ThreadStatus("app-1", "RUNNING", leader=True, records=1, commits=1, joined=True, progress_age_ms=20)
TASK = TaskStatus("0_0", "app-1", "RUNNING", 1, ("counts",))
HEALTHY = StreamsStatus(
    time_ms=1,
    application_id="app",
    process_id="p",
    pid=1,
    state="RUNNING",
    threads=(THREAD,),
    tasks=(TASK,),
)


def with_thread(client="RUNNING", /, **changes):
    """Return a healthy status with changes to its thread."""
    return replace(HEALTHY, state=client, threads=(replace(THREAD, **changes),))


def test_running_instance_passes_every_probe():
    """An instance whose threads and tasks run is live, started and ready."""
    assert check_live(HEALTHY, LIMIT_MS).passes
    assert check_started(HEALTHY).passes
    assert check_ready(HEALTHY, LIMIT_MS).passes


def test_refused_tasks_are_a_warning():
    """An instance that does not take tasks of another topology stays ready, so that a roll can end that; the probe says so."""
    refusing = replace(HEALTHY, refused_tasks=("0_0", "0_1"))
    assert check_ready(refusing, LIMIT_MS).passes
    server = ProbeServer("127.0.0.1:0", lambda: refusing, LIMIT_MS)
    server.start()
    try:
        assert server.address is not None
        connection = http.client.HTTPConnection(*server.address)
        connection.request("GET", "/readyz")
        answer = json.loads(connection.getresponse().read())
        connection.close()
    finally:
        server.close()
    assert answer["ok"] is True
    assert answer["reasons"] == []
    (warning,) = answer["warnings"]
    assert warning.startswith(
        "tasks 0_0, 0_1 are not taken: the group's leader has another topology. Run the same program"
    )


def test_readiness_does_not_wait_for_standbys():
    """A rolling update goes on while standbys are opened and catch up; an active task that is not running holds it up."""
    standby = TaskStatus("0_1", "app-1", "PENDING", 0, role="standby", remaining=None)
    assert check_ready(replace(HEALTHY, tasks=(TASK, standby)), LIMIT_MS).passes
    assert not check_ready(replace(HEALTHY, tasks=(TASK, replace(standby, role="active"))), LIMIT_MS).passes


def test_loop_that_does_not_get_on_is_not_live():
    """A round that takes longer than max.poll.interval.ms fails liveness and readiness, with the thread's name."""
    stuck = with_thread(progress_age_ms=LIMIT_MS + 1)
    (reason,) = check_live(stuck, LIMIT_MS).reasons
    assert "app-1" in reason
    assert f"max.poll.interval.ms={LIMIT_MS}" in reason
    assert not check_ready(stuck, LIMIT_MS).passes
    assert check_live(with_thread(progress_age_ms=LIMIT_MS), LIMIT_MS).passes


def test_waiting_for_a_broker_is_not_being_stuck():
    """A restart would not bring the broker back, and the wait has its own timeout."""
    assert check_live(with_thread(progress_age_ms=LIMIT_MS + 1, waits_for="committed offsets"), LIMIT_MS).passes


@pytest.mark.parametrize("state", ["DEAD", "PENDING_SHUTDOWN", "RUNNING"])
def test_thread_that_ended_and_was_not_replaced_is_not_live(state):
    """While the instance is meant to run, each of its threads must be alive."""
    (reason,) = check_live(with_thread("REBALANCING", state=state, alive=False), LIMIT_MS).reasons
    assert "not replaced" in reason


def test_thread_that_is_about_to_start_is_live():
    """A thread that has been created but not started is not dead."""
    assert check_live(with_thread("REBALANCING", state="CREATED", alive=False, joined=False), LIMIT_MS).passes


def test_thread_that_is_replaced_meanwhile_is_not_reported(tmp_path, monkeypatch):
    """If a thread was replaced while the status was being taken, it is taken again."""
    config = {"application.id": "app", "bootstrap.servers": "127.0.0.1:9", "state.dir": str(tmp_path)}
    streams = KafkaStreams(word_count("in", "out"), config)
    threads = streams._pool._threads
    threads[1] = "old"

    def replace_meanwhile(instance, state, seen, *_, **__):
        threads[1] = "new"
        return seen

    monkeypatch.setattr("millrace.instance.status_report._take", replace_meanwhile)
    assert streams.status() == ["new"]


@pytest.mark.parametrize("state", ["ERROR", "PENDING_ERROR"])
def test_failed_instance_is_not_live_and_says_why(state):
    """An instance that failed is not live, and the reason is its error."""
    (reason,) = check_live(replace(HEALTHY, state=state, error="ProductionError: refused"), LIMIT_MS).reasons
    assert "ProductionError: refused" in reason


@pytest.mark.parametrize("state", ["CREATED", "PENDING_SHUTDOWN", "NOT_RUNNING"])
def test_starting_and_closing_are_live_and_not_ready(state):
    """However long shutdown takes, a restart must not cut its commit short; the instance is not ready."""
    closing = with_thread(state, state="PENDING_SHUTDOWN", progress_age_ms=LIMIT_MS + 1)
    assert check_live(closing, LIMIT_MS).passes
    assert not check_ready(closing, LIMIT_MS).passes


def test_started_means_that_every_thread_was_given_an_assignment():
    """An instance without threads, or with one that has not joined, has not started; an empty assignment is enough."""
    assert not check_started(replace(HEALTHY, threads=())).passes
    waiting = replace(HEALTHY, threads=(THREAD, replace(THREAD, name="app-2", joined=False, state="STARTING")))
    (reason,) = check_started(waiting).reasons
    assert "app-2" in reason
    assert not check_ready(waiting, LIMIT_MS).passes
    assert check_ready(replace(HEALTHY, tasks=()), LIMIT_MS).passes


@pytest.mark.parametrize(
    ("remaining", "text"), [(42, "0_0 is RESTORING, 42 changelog records left"), (None, "0_0 is RESTORING")]
)
def test_restoring_is_live_and_started_but_not_ready(remaining, text):
    """Restoration fails only readiness, with the number of records left."""
    task = replace(TASK, state="RESTORING", remaining=remaining)
    status = replace(with_thread("REBALANCING", state="PARTITIONS_ASSIGNED"), tasks=(task,))
    assert check_live(status, LIMIT_MS).passes
    assert check_started(status).passes
    assert any(text in reason for reason in check_ready(status, LIMIT_MS).reasons)


@pytest.fixture
def served():
    """Serve a status that the test may change."""
    current = [HEALTHY]
    server = ProbeServer("127.0.0.1:0", lambda: current[0], LIMIT_MS)
    server.start()
    yield server.address, current
    server.close()


def get(address, path, method="GET"):
    """Return status code and body."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


def test_probes_are_answered_with_a_code_and_reasons(served):
    """The answer is 200 if all is well, else 503 with the reasons; query strings are ignored, and HEAD has no body."""
    address, current = served
    for path in ("/livez", "/startedz", "/readyz", "/readyz?verbose"):
        assert get(address, path) == (200, {"ok": True, "state": "RUNNING", "reasons": [], "warnings": []})
    assert get(address, "/livez", "HEAD") == (200, None)
    current[0] = replace(HEALTHY, state="ERROR", error="gone")
    code, body = get(address, "/livez")
    assert code == 503
    assert body == {"ok": False, "state": "ERROR", "reasons": ["the instance has failed: gone"], "warnings": []}
    assert get(address, "/status") == (200, json.loads(json.dumps(current[0].to_dict())) | {"ready": False})


def test_unknown_pages_and_failures_have_codes_of_their_own(served):
    """An unknown page is 404 with the existing ones, another method 501, and a failing snapshot 500."""
    address, current = served
    code, body = get(address, "/healthz")
    assert code == 404
    assert "/livez" in body["reasons"][0]
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("POST", "/livez")
    assert connection.getresponse().status == 501
    connection.close()
    current.clear()
    assert get(address, "/livez")[0] == 500


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_without_a_host_either_kind_of_address_is_answered(host):
    """A pod may have an IPv4 address, an IPv6 address, or both."""
    server = ProbeServer(":0", lambda: HEALTHY, LIMIT_MS)
    server.start()
    assert get((host, server.address[1]), "/livez")[0] == 200
    server.close()


def test_machine_without_ipv6_is_supported(monkeypatch):
    """If the kernel has IPv6 turned off, no host means all IPv4 addresses."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = ProbeServer(":0", lambda: HEALTHY, LIMIT_MS)
    server.start()
    assert server.address[0] == "0.0.0.0"
    assert get(("127.0.0.1", server.address[1]), "/livez")[0] == 200
    server.close()


def test_address_of_ipv6_is_written_with_brackets(caplog):
    """The URL in the log can be opened."""
    caplog.set_level("INFO")
    server = ProbeServer("[::1]:0", lambda: HEALTHY, LIMIT_MS)
    server.start()
    assert get(server.address, "/livez")[0] == 200
    assert f"http://[::1]:{server.address[1]}" in caplog.text
    server.close()


def test_client_that_says_nothing_holds_nobody_up(served):
    """A connection without a request does not stop others from being answered, or the server from closing."""
    address, _ = served
    with socket.create_connection(address):
        assert get(address, "/livez")[0] == 200


def test_address_in_use_is_refused_with_its_name(served):
    """A port that is in use gives a clear error that names the setting; closing the server frees it."""
    (host, port), _ = served
    with pytest.raises(ListenerError, match=rf"{host}:{port} \(health.listener\): Address already in use"):
        ProbeServer(f"{host}:{port}", lambda: HEALTHY, LIMIT_MS).start()
    with pytest.raises(ListenerError, match=r"192\.0\.2\.1:0 "):
        ProbeServer("192.0.2.1:0", lambda: HEALTHY, LIMIT_MS).start()


def test_server_may_be_started_again_at_once():
    """After `close` the port is free."""
    first = ProbeServer("127.0.0.1:0", lambda: HEALTHY, LIMIT_MS)
    first.start()
    address = first.address
    assert get(address, "/livez")[0] == 200
    first.close()
    first.close()
    assert first.address is None
    second = ProbeServer(f"{address[0]}:{address[1]}", lambda: HEALTHY, LIMIT_MS)
    second.start()
    assert get(address, "/livez")[0] == 200
    second.close()


@pytest.mark.parametrize("value", ["8080", "localhost", "host:", "host:x", "host:70000", "::1:80:", "::1:8080"])
def test_listener_must_be_host_and_port(value):
    """A value that is not HOST:PORT is a configuration error with an example."""
    with pytest.raises(ConfigError, match=r"health.listener.*HOST:PORT"):
        StreamsConfig.of({"application.id": "a", "health.listener": value})


@pytest.mark.parametrize("value", [":8080", "0.0.0.0:8080", "[::1]:8080", "localhost:0"])
def test_listener_may_be_any_host_or_none(value):
    """Names, IPv4, bracketed IPv6 and no host at all are accepted."""
    assert StreamsConfig.of({"application.id": "a", "health.listener": value}).health_listener == value


def test_command_says_when_the_port_is_taken(served, tmp_path):
    """`millrace run --http` with a port in use ends with 1, the address and a hint, before it connects to a broker."""
    (host, port), _ = served
    (tmp_path / "app.py").write_text(
        "from millrace.topology import Topology\n\n\ndef topology():\n"
        "    return Topology().add_source('in', 'a').add_sink('out', 'b', 'in')\n"
    )
    options = ["--application-id", "a", "--bootstrap", "127.0.0.1:1", "--state-dir", str(tmp_path)]
    result = forked.run(
        [sys.executable, "-m", "millrace.cli", "run", "app.py", *options, "--http", f"{host}:{port}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert result.returncode == 1
    assert f"Cannot listen on {host}:{port}" in result.stderr
    assert "Hint:" in result.stderr
