"""Probes and metrics over HTTP."""

import json
import urllib.error
import urllib.request

import pytest

from millrace_operator.app.health import HealthServer
from millrace_operator.app.metrics import Metrics


@pytest.fixture
def problems():
    """What is wrong."""
    return []


@pytest.fixture
def metrics():
    """The operator's metrics."""
    metrics = Metrics()
    apps = [{"status": {"lifecycleState": "Running"}}, {"status": {"lifecycleState": "Running"}}, {}]
    metrics.watch(depth=lambda: 7, leads=lambda: True, apps=lambda: apps)
    return metrics


@pytest.fixture
def get(problems, metrics):
    """Asks the server."""
    server = HealthServer(0, live=lambda: problems, ready=list, registry=metrics.registry)

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    yield get
    server.close()


def test_probe_fails_with_its_reasons(get, problems):
    """Whoever looks why a pod was restarted finds it in the Event."""
    assert get("/healthz") == (200, '{"ok": true, "reasons": []}')
    problems.append("the watches have stopped")
    status, text = get("/healthz")
    assert (status, json.loads(text)["reasons"]) == (503, ["the watches have stopped"])
    assert get("/readyz")[0] == 200


def test_metrics_have_their_names(get, metrics):
    """Dashboards and alerts know them by these."""
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
    """The answer says which are."""
    assert get("/") == (404, "there are /healthz, /readyz and /metrics\n")
