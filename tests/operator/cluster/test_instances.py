"""Asking pods: what they answer becomes an `Instance`, and one that does not answer is left out."""

import json
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3

from millrace.runtime.status import LagStatus, RestorationStatus, StreamsStatus, TaskCounts, TaskStatus
from millrace_operator.cluster.instances import InstanceError, Instances, instance


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

            do_GET = do_POST = _serve  # noqa: N815 - the base class's names

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
    """What asks pods at this one's port, with patience for a slow machine."""
    monkeypatch.setattr("millrace_operator.cluster.instances._TIMEOUT", urllib3.Timeout(60.0))
    instances = Instances(pod.server.server_address[1])
    yield instances
    instances.close()


def seen(name="orders-0", component="runtime", address="127.0.0.1", phase="Running"):
    """A pod as the API gives it."""
    metadata = {"name": name, "labels": {"app.kubernetes.io/component": component}}
    return {"metadata": metadata, "status": {"phase": phase, "podIP": address}}


def status(**fields):
    """What a pod of this version says."""
    told = StreamsStatus(
        time_ms=0, application_id="a", process_id="p", pid=1, state="RUNNING", threads=(), tasks=(), **fields
    )
    return json.loads(json.dumps(asdict(told)))


def test_pods_tell_how_they_do(pod, instances):
    """Each that runs the application is asked."""
    pod.answers["/status"] = (200, json.dumps(status()))
    found = instances.ask([seen(), seen("orders-1")])
    assert {name: item.state for name, item in found.items()} == {"orders-0": "RUNNING", "orders-1": "RUNNING"}


@pytest.mark.parametrize(
    "other", [seen(component="plan"), seen(phase="Pending"), seen(address=""), {"metadata": {"name": "x"}}]
)
def test_pod_that_cannot_answer_is_not_asked(pod, instances, other):
    """Plan Jobs' pods, and those that are not there yet."""
    assert instances.ask([other]) == {}
    assert pod.asked == []


@pytest.mark.parametrize("answer", [(503, "{}"), (200, "no JSON"), (200, "[]"), (200, "{}"), (200, '{"state": 5}')])
def test_pod_that_answers_nonsense_is_left_out(pod, instances, answer):
    """It runs its user's code."""
    pod.answers["/status"] = answer
    assert instances.ask([seen()]) == {}


def test_pod_that_is_gone_is_left_out():
    """Nothing listens there."""
    instances = Instances(1)
    assert instances.ask([seen()]) == {}
    instances.close()


def test_answer_of_todays_runtime_is_understood():
    """Every figure is found where the runtime puts it."""
    told = instance(
        status(
            error="boom",
            topology_hash="abc",
            task_counts=TaskCounts(active=3, standby=1, warmup=2, restoring=1),
            restoration=RestorationStatus(remaining_records=7, eta_seconds=1.5),
            lag=LagStatus(total=9),
            credentials_stale=True,
        )
    )
    assert (told.error, told.topology_hash) == ("boom", "abc")
    assert (told.active, told.standby, told.warmup, told.restoring) == (3, 1, 2, 1)
    assert (told.remaining_records, told.eta_seconds, told.lag) == (7, 1.5, 9)
    assert told.credentials_stale
    assert not told.ready


def test_instance_is_ready_when_all_its_tasks_run():
    """State RUNNING is not enough while a task is still being made."""
    running = {**status(), "tasks": [asdict(TaskStatus("0_0", "t", "RUNNING", 0))]}
    assert instance(running).ready
    assert not instance({**running, "tasks": [asdict(TaskStatus("0_0", "t", "CREATED", 0))]}).ready
    assert not instance({**running, "state": "REBALANCING"}).ready


def test_answer_of_an_older_runtime_is_understood():
    """What it does not tell is not known."""
    told = instance({"state": "RUNNING"})
    assert (told.state, told.active, told.lag, told.busy_ratio) == ("RUNNING", 0, None, None)


def test_pod_is_told_to_drain(pod, instances):
    """By POST; a refusal is an error."""
    pod.answers["/drain"] = (202, "")
    instances.drain(seen())
    assert pod.asked == [("POST", "/drain")]
    pod.answers["/drain"] = (500, "no")
    with pytest.raises(InstanceError, match="orders-0 answers 500"):
        instances.drain(seen())
    instances.drain(seen(address=""))
