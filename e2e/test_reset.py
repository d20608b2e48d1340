"""A reset against a real API server and a real Kafka: everything is deleted together, once, whatever happens to the operator.

The application is suspended, so there are no pods, and the cluster needs no node. The operator runs on this machine.
"""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest
from tests.waiting import wait_until

from e2e.cluster import Cluster
from e2e.support.application import PATIENCE_S
from e2e.support.suspended_application import SuspendedApplication, running_operator
from millrace.dev.kafka import EmbeddedKafka

NAMESPACE = f"reset-{secrets.token_hex(3)}"


@pytest.fixture(scope="module")
def api(api_server: Cluster) -> Cluster:
    """Return an API server with a namespace for these tests."""
    api_server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    return api_server


@pytest.fixture
def app(api: Cluster, kafka: EmbeddedKafka) -> SuspendedApplication:
    """Return an application that has run and is suspended."""
    app = SuspendedApplication(api, kafka, NAMESPACE)
    app.create()
    return app


def is_untouched(app: SuspendedApplication) -> bool:
    """Return whether an application still has everything."""
    return (
        app.existing_topics() == app.topics
        and app.existing_claims() == app.claims
        and app.offsets() == {0: 10, 1: 7}
        and app.status().get("stableRevision") is not None
    )


def is_reset(app: SuspendedApplication) -> bool:
    """Return whether nothing of an application's state is left, and nothing reports it as lost."""
    return (
        app.existing_topics() == set()
        and app.existing_claims() == []
        and app.offsets() == {0: 0, 1: 0}
        and app.status().get("stableRevision") is None
        and app.remembered() == set()
    )


def test_reset_runs_once_and_nothing_is_reported_lost(api: Cluster, app: SuspendedApplication, tmp_path: Path) -> None:
    """A dry run shows what a reset will do; afterwards nothing is reported lost, and the application starts from scratch."""
    with running_operator(api, NAMESPACE, tmp_path / "operator.log"):
        app.remember()
        dry = app.reset(dryRun=True)
        wait_until(lambda: dry().get("phase") == "Succeeded", "the dry run", PATIENCE_S)
        assert is_untouched(app)
        status = app.reset()
        wait_until(lambda: status().get("phase") == "Succeeded", "the reset", PATIENCE_S)
        done = status()
        assert done["result"]["deletedTopics"] == sorted(app.topics)
        assert done["result"] == done["plan"] == dry()["plan"]
        wait_until(lambda: is_reset(app), "all to be gone", PATIENCE_S)
        conditions = {item["type"]: item for item in app.status()["conditions"]}
        assert conditions["Stalled"]["status"] == "False"
        wait_until(lambda: {"ResetBegun", "ResetSucceeded"} <= set(app.events()), "the events", PATIENCE_S)
        assert "ChangelogLost" not in app.events()
    with running_operator(api, NAMESPACE, tmp_path / "operator.log"):
        api.apply(app.manifest("running"))
        wait_until(
            lambda: app.existing_topics() == app.topics and len(app.remembered()) == 2,
            "the topics to be made anew",
            PATIENCE_S,
        )
        wait_until(lambda: {"TopicsReady", "TopologyCompatible"} <= app.true_conditions(), "it to be told", PATIENCE_S)
        api.apply(app.manifest("suspended"))
        wait_until(lambda: app.status().get("lifecycleState") == "Suspended", "it to be suspended again", PATIENCE_S)
    assert app.existing_topics() == app.topics
    assert status() == done


@pytest.mark.thorough
def test_running_application_is_not_reset(api: Cluster, app: SuspendedApplication, tmp_path: Path) -> None:
    """Nothing happens while `state` is running, and the status says what to do; the reset continues once it is suspended."""
    with running_operator(api, NAMESPACE, tmp_path / "operator.log"):
        app.remember()
        api.apply(app.manifest("running"))
        status = app.reset()
        wait_until(lambda: status().get("phase") == "Waiting", "the reset to wait", PATIENCE_S)
        assert "spec.state: suspended" in status()["message"]
        assert app.existing_topics() == app.topics
        assert app.offsets() == {0: 10, 1: 7}
        api.apply(app.manifest("suspended"))
        wait_until(lambda: status().get("phase") == "Succeeded", "the reset", PATIENCE_S)
        wait_until(lambda: is_reset(app), "all to be gone", PATIENCE_S)


@pytest.mark.thorough
def test_reset_without_application_fails(api: Cluster, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """There is nothing to wait for."""
    app = SuspendedApplication(api, kafka, NAMESPACE)
    with running_operator(api, NAMESPACE, tmp_path / "operator.log"):
        status = app.reset()
        wait_until(lambda: status().get("phase") == "Failed", "the reset to fail", PATIENCE_S)
        assert f"There is no StreamsApp {app.name}" in status()["message"]


@pytest.mark.thorough
def test_crashing_operator_completes_the_reset(api: Cluster, app: SuspendedApplication, tmp_path: Path) -> None:
    """Killed after every action, the operator still resets the application completely."""
    log = tmp_path / "operator.log"
    with running_operator(api, NAMESPACE, log):
        app.remember()
        wait_until(
            lambda: app.status().get("lifecycleState") == "Suspended", "the application to be at rest", PATIENCE_S
        )
    status = app.reset(toOffset="shift:-3")
    crashes = 0
    for _ in range(20):
        with running_operator(api, NAMESPACE, log, crashing=True) as process:

            def ended(process: subprocess.Popen[bytes] = process) -> bool:
                return process.poll() is not None or status().get("phase") == "Succeeded"

            wait_until(ended, "the operator to crash or the reset to end", PATIENCE_S)
        crashes += process.returncode == 137
        if status().get("phase") == "Succeeded":
            break
    assert status()["phase"] == "Succeeded"
    assert crashes >= 5
    assert app.existing_topics() == set()
    assert app.existing_claims() == []
    assert app.offsets() == {0: 7, 1: 4}
