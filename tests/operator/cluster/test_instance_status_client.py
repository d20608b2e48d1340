"""Asking pods: their answers become `StreamsStatus` objects, and pods that do not answer are left out."""

import contextlib
import json
import socket
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.waiting import wait_until

from millrace.instance_status import StreamsStatus
from millrace_operator.cluster.instance_status_client import InstanceStatusClient


class Pod:
    """A pod's HTTP endpoint."""

    def __init__(self):
        self.answers = {}
        self.asked = []
        pod = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self):
                pod.asked.append((self.command, self.path))
                status, text = pod.answers.get(self.path, (404, ""))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = _serve  # noqa: N815 - the base class's name

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def pod():
    """A pod that answers."""
    pod = Pod()
    yield pod
    pod.server.shutdown()
    pod.server.server_close()


@pytest.fixture
def instances(pod, monkeypatch):
    """A client for this pod's port, with long timeouts for a slow machine."""
    monkeypatch.setattr("millrace_operator.cluster.instance_status_client._CONNECT_SECONDS", 60.0)
    monkeypatch.setattr("millrace_operator.cluster.instance_status_client._DEADLINE_SECONDS", 60.0)
    instances = InstanceStatusClient(pod.server.server_address[1])
    yield instances
    instances.close()


def seen(name="orders-0", component="runtime", address="127.0.0.1", phase="Running"):
    """A pod as the API returns it."""
    metadata = {"name": name, "uid": f"uid-of-{name}", "labels": {"app.kubernetes.io/component": component}}
    return {"metadata": metadata, "status": {"phase": phase, "podIP": address}}


def status(**fields):
    """The status that a pod of this version reports."""
    told = StreamsStatus(
        time_ms=0, application_id="a", process_id="p", pid=1, state="RUNNING", threads=(), tasks=(), **fields
    )
    return json.loads(json.dumps(asdict(told)))


def test_pods_tell_how_they_do(pod, instances):
    """Every pod that runs the application is asked."""
    pod.answers["/status"] = (200, json.dumps(status()))
    found = instances.ask([seen(), seen("orders-1")])
    assert {name: item.state for name, item in found.items()} == {"orders-0": "RUNNING", "orders-1": "RUNNING"}


@pytest.mark.parametrize(
    "other", [seen(component="plan"), seen(phase="Pending"), seen(address=""), {"metadata": {"name": "x"}}]
)
def test_pod_that_cannot_answer_is_not_asked(pod, instances, other):
    """Pods of plan Jobs and pods that are not running yet are not asked."""
    assert instances.ask([other]) == {}
    assert pod.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        (503, '{"state": "RUNNING"}'),
        (200, ""),
        (200, "no JSON"),
        (200, "[]"),
        (200, "{}"),
        (200, '{"state": 5}'),
        (200, "[" * 100_000),
        (200, " " * (5 << 20) + '{"state": "RUNNING"}'),
    ],
)
def test_pod_that_answers_nonsense_is_left_out(pod, instances, answer):
    """A pod runs its user's code, so it may answer anything."""
    pod.answers["/status"] = answer
    assert instances.ask([seen()]) == {}


def test_answer_of_another_pod_is_none(pod, instances):
    """The address may belong to another pod by now; a runtime that does not name its pod is trusted."""
    for uid, believed in (("uid-of-orders-0", True), ("uid-of-stocks-0", False), ("", True)):
        pod.answers["/status"] = (200, json.dumps(status(pod_uid=uid)))
        assert bool(instances.ask([seen()])) is believed


class Dribble:
    """A pod that sends part of an answer at most, then a byte now and then, until it is closed."""

    def __init__(self, begin):
        self.asked = 0
        self._closed = threading.Event()
        self._begin = begin
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._socket.accept()
                self.asked += 1
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link):
        with link, contextlib.suppress(OSError):
            link.sendall(self._begin)
            while not self._closed.wait(0.05):
                link.sendall(b" " if self._begin else b"")

    def close(self):
        self._closed.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n"]
)
def test_slow_answer_of_a_pod_delays_no_other_pod(begin, monkeypatch):
    """Each byte arrives in time but the answer never does: the deadline covers headers and body."""
    monkeypatch.setattr("millrace_operator.cluster.instance_status_client._DEADLINE_SECONDS", 0.5)
    now, found = [0.0], []
    pod = Dribble(begin)
    instances = InstanceStatusClient(pod.port, lambda: now[0])
    asking = threading.Thread(target=lambda: found.append(instances.ask([seen()])), daemon=True)
    asking.start()
    asking.join(60)
    assert found == [{}], "ask() still waits"
    instances.ask([seen()])
    asked = pod.asked
    instances.ask([seen()])
    assert pod.asked == asked, "late twice in a row, it is not asked for a while"
    now[0] += 5
    instances.ask([seen()])
    assert pod.asked == asked + 1
    pod.close()
    instances.close()


def test_pods_that_dribble_hold_no_other_application_up(monkeypatch):
    """However many such pods there are, other applications' pods are asked in the meantime."""
    monkeypatch.setattr("millrace_operator.cluster.instance_status_client._DEADLINE_SECONDS", 60.0)
    evil, good = Dribble(b"HTTP/1.1 200 OK\r\nX: "), Pod()
    good.answers["/status"] = (200, json.dumps(status()))
    instances = InstanceStatusClient()
    addresses = {"evil": evil.port, "good": good.server.server_address[1]}
    monkeypatch.setattr(instances, "_url", lambda address, path: f"http://127.0.0.1:{addresses[address]}/{path}")
    pods = [seen(f"evil-{number}", address="evil") for number in range(100)]
    asking = threading.Thread(target=instances.ask, args=(pods,), daemon=True)
    asking.start()
    wait_until(lambda: evil.asked >= 32, "32 requests")
    assert instances.ask([seen(address="good")])
    assert asking.is_alive()
    evil.close()
    asking.join(60)
    instances.close()
    good.server.shutdown()
    good.server.server_close()


def test_pod_that_is_gone_is_left_out():
    """Nothing listens at its address."""
    instances = InstanceStatusClient(1)
    assert instances.ask([seen()]) == {}
    instances.close()
