"""A backfill against a real API server with the CRDs of both Spark operators, and a real Kafka.

The SparkApplications are validated strictly, by the Spark operators' own CRDs: an unknown field would be ignored in production.
The application has no pods, and a test takes the Spark operator's part, so the cluster needs no node. The operator runs on this
machine.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from e2e.cluster import Cluster, reading
from e2e.spark.installation import install_crds
from e2e.support.application import PATIENCE_S
from e2e.support.backfill import example_attempt
from e2e.support.suspended_application import API_VERSION, SuspendedApplication, running_operator
from millrace.dev.kafka import EmbeddedKafka
from millrace_operator.backfills.spark_application import SPARK_GROUPS, config_map, spark_application
from millrace_operator.children.naming import MANAGER

NAMESPACE = f"backfill-{secrets.token_hex(3)}"
SPARK_OPERATOR, APACHE = SPARK_GROUPS.values()


@pytest.fixture(scope="module")
def api(api_server: Cluster) -> Cluster:
    """Return an API server with all CRDs, the checks of a Spark operator's webhook, and a namespace for these tests."""
    install_crds(api_server)
    api_server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    return api_server


@pytest.fixture(scope="module")
def operator(api: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run the operator for these tests."""
    with running_operator(api, NAMESPACE, tmp_path_factory.mktemp("backfill") / "operator.log"):
        yield


@pytest.fixture
def app(api: Cluster, kafka: EmbeddedKafka, operator: None) -> SuspendedApplication:
    """Return an application that has run and is suspended, which the operator knows."""
    app = SuspendedApplication(api, kafka, NAMESPACE)
    app.create()
    app.remember()
    return app


class Backfill:
    """A `StreamsBackfill` of an application, and what a Spark operator would do about it."""

    def __init__(self, app: SuspendedApplication, **spec: Any) -> None:
        self.app = app
        self.name = f"{app.name}-{secrets.token_hex(2)}"
        manifest = {
            "apiVersion": API_VERSION,
            "kind": "StreamsBackfill",
            "metadata": {"name": self.name, "namespace": app.namespace},
            "spec": {"appRef": {"name": app.name}, "driver": {"serviceAccountName": "spark"}, **spec},
        }
        app.cluster.apply(manifest)

    def status(self) -> dict[str, Any]:
        """Return its status."""
        return dict(self.app.get("streamsbackfill", self.name).get("status") or {})

    @property
    def phase(self) -> str | None:
        """Its phase."""
        return self.status().get("phase")

    def wait_for(self, phase: str) -> dict[str, Any]:
        """Wait for a phase, and return the status."""
        wait_until(lambda: self.phase == phase, f"phase {phase} of {self.name}", PATIENCE_S)
        return self.status()

    def applications(self) -> list[str]:
        """Return the names of its SparkApplications."""
        found = self.app.find("sparkapplication", labelSelector=f"streams.millrace.dev/backfill={self.name}")
        return sorted(item["metadata"]["name"] for item in found)

    def set_state(self, attempt: int, state: str) -> None:
        """Write the state of a SparkApplication, as its operator does."""
        name = f"{self.name}-{attempt}"
        patch = {"status": {"applicationState": {"state": state}, "driverInfo": {"webUIServiceName": f"{name}-ui-svc"}}}
        self.app.cluster.kubectl(
            "patch",
            "sparkapplications.sparkoperator.k8s.io",
            name,
            f"--namespace={self.app.namespace}",
            "--subresource=status",
            "--type=merge",
            f"--patch={json.dumps(patch)}",
        )

    def delete(self) -> None:
        """Delete it without waiting."""
        space = f"--namespace={self.app.namespace}"
        self.app.cluster.kubectl("delete", "streamsbackfill", self.name, space, "--wait=false")

    def is_gone(self) -> bool:
        """Return whether it no longer exists."""
        return reading.get(self.app.cluster.client, "streamsbackfill", self.app.namespace, self.name) is None


@pytest.mark.parametrize("api_version", [SPARK_OPERATOR, APACHE])
@pytest.mark.parametrize("good", ["minimal", "everything"])
def test_spark_applications_are_valid_for_both_operators(api: Cluster, good: str, api_version: str) -> None:
    """With no field or with every field of the manifests, the API server knows each field of the SparkApplication."""
    item = spark_application(example_attempt(good, NAMESPACE), api_version)
    command = ("create", "--dry-run=server", "--validate=strict", "--output=json", "--filename=-")
    created = json.loads(api.kubectl(*command, stdin=json.dumps(item)))
    assert _with_defaults(item["spec"], created["spec"])
    api.kubectl(*command, stdin=json.dumps(config_map(example_attempt(good, NAMESPACE))))


def _with_defaults(sent: Any, stored: Any) -> bool:
    """Return whether a stored value is what was sent, except for defaults."""
    if isinstance(sent, dict):
        return all(key in stored and _with_defaults(value, stored[key]) for key, value in sent.items())
    if isinstance(sent, list):
        return len(sent) == len(stored) and all(_with_defaults(*pair) for pair in zip(sent, stored, strict=True))
    return bool(sent == stored)


@pytest.mark.parametrize("api_version", [SPARK_OPERATOR, APACHE])
def test_pods_of_spark_applications_are_restricted(api: Cluster, api_version: str) -> None:
    """A namespace that enforces the Restricted profile admits driver and executor as the template has them."""
    name = f"restricted-{secrets.token_hex(2)}"
    enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": enforce}})
    spec = spark_application(example_attempt("everything", NAMESPACE), api_version)["spec"]
    templates = (
        [spec[role]["template"] for role in ("driver", "executor")]
        if api_version == SPARK_OPERATOR
        else [spec[role]["podTemplateSpec"] for role in ("driverSpec", "executorSpec")]
    )
    for role, template in zip(("driver", "executor"), templates, strict=True):
        template["spec"]["serviceAccountName"] = "default"
        template["spec"].pop("priorityClassName", None)
        template["spec"].pop("runtimeClassName", None)
        template["spec"]["containers"][0]["image"] = "registry.example/orders:1"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": role, "namespace": name},
            "spec": template["spec"],
        }
        api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}})
        api.kubectl("create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=json.dumps(pod))


def test_backfill_holds_the_application_until_it_is_done(app: SuspendedApplication) -> None:
    """From the API alone: the application is stopped, a SparkApplication is created, followed, and its end releases it."""
    backfill = Backfill(app)
    backfill.wait_for("Submitted")
    wait_until(lambda: app.status().get("backfill") == backfill.name, "the application to be held", PATIENCE_S)
    assert app.status()["lifecycleState"] == "Backfilling"
    shown = app.cluster.kubectl("get", "streamsapp", app.name, f"--namespace={NAMESPACE}")
    assert "Backfilling" in shown
    item = app.get("sparkapplication", f"{backfill.name}-1")
    assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == MANAGER
    assert item["metadata"]["ownerReferences"][0]["name"] == backfill.name
    backfill.set_state(1, "RUNNING")
    wait_until(lambda: backfill.status().get("spark", {}).get("state") == "RUNNING", "the state", PATIENCE_S)
    assert backfill.status()["spark"]["webUi"].endswith(":4040")
    backfill.set_state(1, "COMPLETED")
    status = backfill.wait_for("Succeeded")
    assert status["planHash"] is not None
    wait_until(lambda: app.status().get("backfill") is None, "the application to be released", PATIENCE_S)
    wait_until(lambda: app.status().get("lifecycleState") == "Suspended", "what its spec says", PATIENCE_S)
    expected = {"BackfillBegun", "SparkApplicationCreated", "BackfillSucceeded"}
    wait_until(lambda: expected <= set(app.events()), "the events", PATIENCE_S)


def test_failed_attempts_are_repeated_and_then_it_fails(app: SuspendedApplication) -> None:
    """Each has a SparkApplication of its own; the earlier ones stay for their logs."""
    backfill = Backfill(app, attempts=2)
    for number in (1, 2):
        wait_until(lambda number=number: backfill.status().get("attempt") == number, f"attempt {number}", PATIENCE_S)
        backfill.set_state(number, "SUBMISSION_FAILED" if number == 1 else "FAILED")
    status = backfill.wait_for("Failed")
    assert "Attempt 2 failed" in status["message"]
    assert backfill.applications() == [f"{backfill.name}-1", f"{backfill.name}-2"]
    wait_until(lambda: app.status().get("backfill") is None, "the application to be released", PATIENCE_S)


def test_deleted_backfill_takes_its_spark_application_along(app: SuspendedApplication) -> None:
    """The application is released, and nothing of the backfill is left."""
    backfill = Backfill(app)
    backfill.wait_for("Submitted")
    backfill.delete()
    wait_until(backfill.is_gone, "it to be gone", PATIENCE_S)
    assert backfill.applications() == []
    wait_until(lambda: app.status().get("backfill") is None, "the application to be released", PATIENCE_S)


def test_setting_that_the_spark_operator_refuses_ends_the_backfill(app: SuspendedApplication) -> None:
    """What its webhook does not let in would never run: the backfill ends with its words, and the application is released."""
    backfill = Backfill(app, sparkConf={"spark.kubernetes.driver.master": "https://elsewhere"})
    status = backfill.wait_for("Refused")
    assert "sparkConf key is not allowed: spark.kubernetes.driver.master" in status["message"]
    wait_until(lambda: app.status().get("backfill") is None, "the application to be released", PATIENCE_S)
    assert backfill.applications() == []


def test_one_operation_at_a_time(app: SuspendedApplication) -> None:
    """A second backfill and a reset wait for the first, which they name."""
    first = Backfill(app)
    first.wait_for("Submitted")
    second, reset = Backfill(app), app.reset(dryRun=False)
    assert first.name in second.wait_for("Waiting")["message"]
    wait_until(lambda: first.name in (reset().get("message") or ""), "the reset to wait", PATIENCE_S)
    assert app.existing_topics() == app.topics
    first.set_state(1, "COMPLETED")
    first.wait_for("Succeeded")
    second.wait_for("Submitted")
    second.delete()
    wait_until(lambda: reset().get("phase") == "Succeeded", "the reset", PATIENCE_S)


@pytest.mark.thorough
def test_crashing_operator_gets_there(api: Cluster, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Killed after every action, the operator creates each SparkApplication once and ends the backfill."""
    log, space = tmp_path / "operator.log", f"crash-{secrets.token_hex(3)}"
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    app = SuspendedApplication(api, kafka, space)
    app.create()
    with running_operator(api, space, log):
        app.remember()
        wait_until(
            lambda: app.status().get("lifecycleState") == "Suspended", "the application to be at rest", PATIENCE_S
        )
    backfill, crashes = Backfill(app), 0
    for _ in range(20):
        with running_operator(api, space, log, crashing=True) as process:

            def ended() -> bool:
                return process.poll() is not None or backfill.phase in {"Submitted", "Succeeded"}

            wait_until(ended, "the operator to crash or the phase to change", PATIENCE_S)
            if backfill.phase == "Submitted":
                backfill.set_state(1, "COMPLETED")
                wait_until(
                    lambda: process.poll() is not None or backfill.phase == "Succeeded",
                    "the operator to crash or to end it",
                    PATIENCE_S,
                )
        crashes += process.returncode == 137
        if backfill.phase == "Succeeded":
            break
    assert backfill.phase == "Succeeded"
    assert crashes >= 3
    assert backfill.applications() == [f"{backfill.name}-1"]
