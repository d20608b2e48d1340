"""Probes and metrics over HTTP."""

import json
import socket
import urllib.error
import urllib.request

import pytest

from millrace_operator.app.health import OperatorHealthServer
from millrace_operator.app.metrics import OperatorMetrics


@pytest.fixture
def problems():
    """The problems to report."""
    return []


@pytest.fixture
def metrics():
    """The operator's metrics."""
    metrics = OperatorMetrics()
    states = [{"status": {"lifecycleState": "Running"}}, {"status": {"lifecycleState": "Running"}}, {}]
    apps = [{"metadata": {"namespace": "shop", "name": f"app-{n}"}, **state} for n, state in enumerate(states)]
    metrics.watch(depth=lambda: 7, leads=lambda: True, apps=lambda: apps)
    return metrics


@pytest.fixture
def get(problems, metrics):
    """Asks the server."""
    server = OperatorHealthServer(0, live=lambda: problems, ready=list, registry=metrics.registry)

    def get(path, host="127.0.0.1"):
        try:
            with urllib.request.urlopen(f"http://{host}:{server.port}{path}", timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    yield get
    server.close()


def test_probe_fails_with_its_reasons(get, problems):
    """The Event of a restarted pod says why it was restarted."""
    assert get("/healthz") == (200, '{"ok": true, "reasons": []}')
    problems.append("the watches have stopped")
    status, text = get("/healthz")
    assert (status, json.loads(text)["reasons"]) == (503, ["the watches have stopped"])
    assert get("/readyz")[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_either_kind_of_address_is_answered(get, host):
    """A pod has IPv4, IPv6 or both: probes and Prometheus use whichever the cluster has."""
    assert get("/healthz", host)[0] == 200


def test_machine_without_ipv6_is_supported(monkeypatch, metrics):
    """If the kernel has IPv6 disabled, the server listens on IPv4."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = OperatorHealthServer(0, live=list, ready=list, registry=metrics.registry)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=60) as response:
        assert response.status == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("::1", server.port), 60)
    server.close()


def test_metrics_have_their_names(get, metrics):
    """Dashboards and alerts use these names."""
    metrics.request("apply", "statefulsets", "200", 0.01)
    metrics.passed("ok", 0.2)
    status, text = get("/metrics")
    assert status == 200
    for line in (
        'millrace_operator_api_requests_total{code="200",resource="statefulsets",verb="apply"} 1.0',
        'millrace_operator_reconcile_seconds_count{result="ok"} 1.0',
        "millrace_operator_queue_depth 7.0",
        'millrace_operator_apps{state="Running"} 2.0',
        'millrace_operator_apps{state="Unknown"} 1.0',
    ):
        assert line in text.splitlines()
    assert "millrace_operator_last_reconcile_age_seconds" in text


def test_other_paths_are_not_there(get):
    """The answer lists the paths that exist."""
    assert get("/") == (404, "there are /healthz, /readyz and /metrics\n")


def test_metrics_tell_of_each_application():
    """Its identity, state and numbers appear under its namespace and name; unknown values have no sample."""
    ready = {"type": "Ready", "status": "False", "reason": "PodsNotReady"}
    app = {
        "metadata": {"namespace": "shop", "name": "orders", "generation": 3},
        "spec": {"applicationId": "orders-v1", "image": "i:1", "processing": {"guarantee": "exactly_once_v2"}},
        "status": {
            "observedGeneration": 2,
            "lifecycleState": "Restoring",
            "currentRevision": "r1",
            "readyReplicas": 1,
            "desiredReplicas": 2,
            "lag": {"total": 1200},
            "tasks": {"restoring": 1},
            "restoration": {"remainingRecords": 700},
            "conditions": [ready],
        },
    }
    apps, leads, metrics = [app], [True], OperatorMetrics()
    metrics.watch(depth=lambda: 0, leads=lambda: leads[0], apps=lambda: apps)
    said = {"application_id": "orders-v1", "image": "i:1", "revision": "r1", "guarantee": "exactly_once_v2"}
    expected = [
        ("info", said, 1),
        ("lifecycle_state", {"state": "Restoring"}, 1),
        ("condition", ready, 1),
        ("generation", {}, 3),
        ("observed_generation", {}, 2),
        ("ready_replicas", {}, 1),
        ("desired_replicas", {}, 2),
        ("lag_records", {}, 1200),
        ("restoring_tasks", {}, 1),
        ("restoration_remaining_records", {}, 700),
    ]
    for name, labels, value in expected:
        its = {"namespace": "shop", "name": "orders", **labels}
        assert metrics.registry.get_sample_value(f"millrace_app_{name}", its) == value, name
    assert metrics.registry.get_sample_value("millrace_app_recommended_replicas", its) is None
    leads[0] = False
    assert not _samples_of_apps(metrics), "only who holds the Lease tells of applications"
    leads[0] = True
    apps.clear()
    assert not _samples_of_apps(metrics), "series end with the application"


def _samples_of_apps(metrics):
    families = metrics.registry.collect()
    return [sample for item in families for sample in item.samples if sample.name.startswith("millrace_app_")]
