"""`python -m e2e.spark.operator KUBECONFIG NAMESPACE…`: what kubeflow's Spark operator 2.5.2 does about SparkApplications.

It submits each with `spark-submit`, follows the driver and the executors, writes their states, tries again if `restartPolicy`
says so, and deletes the driver with its application. Like the original it remembers nothing: the status has the whole state, and
an operator that is killed and started again goes on. It does not have `suspend`, changed specs, ingresses and batch schedulers.

    New ─► SUBMITTED ─► RUNNING ─► SUCCEEDING ─► COMPLETED
     │         │           └─────► FAILING ────► FAILED, or PENDING_RERUN ─► SUBMITTED
     └─► SUBMISSION_FAILED ──────────────────────┘
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyspark
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from e2e.spark.submission import (
    LABELS,
    Manifest,
    UnsupportedError,
    arguments,
    driver_pod_name,
    owner_reference,
    with_defaults,
)

POLL_S: Final = 0.5
_GRACE_S: Final = 10.0
"""How long a driver's pod may be missing after its submission."""
_UI_PORT: Final = 4040
_KIND: Final = ("sparkoperator.k8s.io", "v1beta2")
_OF_DRIVER: Final = {"Pending": "SUBMITTED", "Running": "RUNNING", "Completed": "SUCCEEDING", "Failed": "FAILING"}
_EXECUTOR_STATES: Final = {"Pending": "PENDING", "Running": "RUNNING", "Succeeded": "COMPLETED", "Failed": "FAILED"}
_ENDED: Final = {"COMPLETED", "FAILED"}
NOT_FOUND: Final = 404
CONFLICT: Final = 409


class SparkOperator:
    """Serves the SparkApplications of one namespace.

    Args:
        kubeconfig: With the rights of the Spark operator's account.
        namespace: The namespace.
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        api = config.new_client_from_config(str(kubeconfig))
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._master = api.configuration.host
        self._applications = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)
        self._pods: dict[str, Any] = {}

    def run(self) -> None:
        """Serve until the process ends."""
        while True:
            try:
                pods = self._core.list_namespaced_pod(
                    self._namespace, label_selector=f"{LABELS}launched-by-spark-operator=true"
                )
                self._pods = {pod.metadata.name: pod for pod in pods.items}
                found = self._applications.list_namespaced_custom_object(*_KIND, self._namespace, "sparkapplications")
                for app in found["items"]:
                    self._reconcile(app)
            except Exception as error:
                # As in the original, an error is logged, and everything is looked at again.
                if not (isinstance(error, ApiException) and error.status in {NOT_FOUND, CONFLICT}):
                    _say(f"{self._namespace}: {type(error).__name__}: {error}")
            time.sleep(POLL_S)

    def _reconcile(self, app: Manifest) -> None:
        """Make one transition and write the status."""
        if app["metadata"].get("deletionTimestamp"):
            self._delete_driver(app)
            return
        status = dict(app.get("status") or {})
        steps = {
            "": self._submit,
            "SUBMITTED": self._follow,
            "RUNNING": self._follow,
            "UNKNOWN": self._follow,
            "SUBMISSION_FAILED": self._after_failed_submission,
            "SUCCEEDING": self._after_success,
            "FAILING": self._after_failure,
            "PENDING_RERUN": self._submit_again,
        }
        state = (status.get("applicationState") or {}).get("state") or ""
        steps.get(state, self._after_the_end)(with_defaults(app), status)
        if status != app.get("status"):
            # With the version that was seen, so a change in between is a conflict, and nothing is lost.
            self._applications.replace_namespaced_custom_object_status(
                *_KIND, self._namespace, "sparkapplications", app["metadata"]["name"], {**app, "status": status}
            )

    def _follow(self, app: Manifest, status: Manifest) -> None:
        new = status["applicationState"]["state"] == "SUBMITTED"
        self._follow_driver(app, status)
        self._follow_executors(app, status)
        if new:
            self._serve_ui(app, status)

    def _after_failed_submission(self, app: Manifest, status: Manifest) -> None:
        policy = app["spec"]["restartPolicy"]
        if not _retries(policy, "onSubmissionFailureRetries", status["submissionAttempts"]):
            status["terminationTime"] = _now()
            _set(status, "FAILED")
        elif self._is_due(status, policy["onSubmissionFailureRetryInterval"]):
            self._delete_driver(app)
            self._submit_again(app, status)

    def _after_success(self, app: Manifest, status: Manifest) -> None:
        if app["spec"]["restartPolicy"]["type"] == "Always":
            self._rerun(app, status)
        else:
            _set(status, "COMPLETED")

    def _after_failure(self, app: Manifest, status: Manifest) -> None:
        policy = app["spec"]["restartPolicy"]
        if not _retries(policy, "onFailureRetries", status["executionAttempts"]):
            _set(status, "FAILED")
        elif self._is_due(status, policy["onFailureRetryInterval"]):
            self._rerun(app, status)

    def _submit_again(self, app: Manifest, status: Manifest) -> None:
        if driver_pod_name(app) not in self._pods:
            self._submit(app, status)

    def _after_the_end(self, app: Manifest, status: Manifest) -> None:
        ttl = app["spec"].get("timeToLiveSeconds")
        if ttl is not None and status.get("terminationTime") and _seconds_since(status["terminationTime"]) > ttl:
            self._applications.delete_namespaced_custom_object(
                *_KIND, self._namespace, "sparkapplications", app["metadata"]["name"]
            )
        else:
            self._follow_executors(app, status)

    def _submit(self, app: Manifest, status: Manifest) -> None:
        """Submit; as in the original, only the status that is written afterwards says so."""
        name, submission = app["metadata"]["name"], str(uuid.uuid4())
        status |= {
            "submissionID": submission,
            "driverInfo": {**status.get("driverInfo", {}), "podName": driver_pod_name(app)},
            "lastSubmissionAttemptTime": _now(),
            "submissionAttempts": status.get("submissionAttempts", 0) + 1,
        }
        with tempfile.TemporaryDirectory(prefix="millrace-spark-") as folder:
            try:
                command = arguments(app, submission, self._master, Path(folder))
            except UnsupportedError as error:
                _set(status, "SUBMISSION_FAILED", f"failed to build spark-submit arguments: {error}")
                return
            _say(f"{name}: spark-submit {' '.join(command)}")
            submit = Path(pyspark.__path__[0]) / "bin/spark-submit"
            environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig), "SPARK_HOME": str(submit.parents[1])}
            done = subprocess.run([submit, *command], env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            status["executionAttempts"] = status.get("executionAttempts", 0) + 1
            _set(status, "SUBMITTED")
            return
        what = "driver pod already exist" if "code=409" in done.stderr else f"failed to run spark-submit: {done.stderr}"
        _say(f"{name}: {done.stderr[-4000:]}")
        _set(status, "SUBMISSION_FAILED", f"failed to submit spark application: failed to run spark-submit: {what}")

    def _follow_driver(self, app: Manifest, status: Manifest) -> None:
        pod = self._pods.get(status["driverInfo"]["podName"])
        if pod is None:
            if status["applicationState"]["state"] == "SUBMITTED" and _age_s(status) <= _GRACE_S:
                return
            status["terminationTime"] = _now()
            _set(status, "FAILING", "driver pod not found")
            return
        status["sparkApplicationId"] = pod.metadata.labels.get("spark-app-selector", "")
        terminated = _terminated(pod)
        phase = pod.status.phase
        if phase == "Succeeded" or (terminated and terminated.exit_code == 0):
            state = "Completed"
        elif phase == "Failed" or terminated:
            state = "Failed"
        else:
            state = phase
        message = None
        if state in {"Completed", "Failed"}:
            status.setdefault("terminationTime", _now())
        if state == "Failed":
            message = "driver container status missing"
            if terminated:
                message = f"driver container failed with ExitCode: {terminated.exit_code}, Reason: {terminated.reason}"
        new = _OF_DRIVER.get(state, "UNKNOWN")
        if new != status["applicationState"]["state"]:
            _say(f"{app['metadata']['name']}: {new}")
            _set(status, new, message)

    def _follow_executors(self, app: Manifest, status: Manifest) -> None:
        name, submission = app["metadata"]["name"], status.get("submissionID")
        found = {}
        for pod in self._pods.values():
            labels = pod.metadata.labels
            own = labels.get(f"{LABELS}app-name") == name and labels.get(f"{LABELS}submission-id") == submission
            if own and labels.get("spark-role") == "executor":
                found[pod.metadata.name] = _EXECUTOR_STATES.get(pod.status.phase, "UNKNOWN")
                status["sparkApplicationId"] = labels.get("spark-app-selector", "")
        known = status.get("executorState") or {}
        state = status["applicationState"]["state"]
        lost = {"RUNNING": "UNKNOWN", "COMPLETED": "COMPLETED"}.get(state, "FAILED")
        gone = {pod: lost for pod, last in known.items() if pod not in found and last not in _ENDED}
        status["executorState"] = {**known, **gone, **found}

    def _serve_ui(self, app: Manifest, status: Manifest) -> None:
        name = f"{app['metadata']['name']}-ui-svc"
        selector = {f"{LABELS}app-name": app["metadata"]["name"], "spark-role": "driver"}
        labels = {f"{LABELS}app-name": app["metadata"]["name"], f"{LABELS}submission-id": status["submissionID"]}
        service = {
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner_reference(app)]},
            "spec": {"ports": [{"name": "spark-driver-ui-port", "port": _UI_PORT}], "selector": selector},
        }
        try:
            made = self._core.create_namespaced_service(self._namespace, service)
        except ApiException as error:
            if error.status != CONFLICT:
                raise
            made = self._core.read_namespaced_service(name, self._namespace)
        address = f"{made.spec.cluster_ip}:{_UI_PORT}"
        status["driverInfo"] |= {"webUIServiceName": name, "webUIPort": _UI_PORT, "webUIAddress": address}

    def _rerun(self, app: Manifest, status: Manifest) -> None:
        self._delete_driver(app)
        for field in ("sparkApplicationId", "terminationTime", "executorState"):
            status.pop(field, None)
        status["driverInfo"] = {}
        _set(status, "PENDING_RERUN")

    def _delete_driver(self, app: Manifest) -> None:
        for delete, name in (
            (self._core.delete_namespaced_pod, driver_pod_name(app)),
            (self._core.delete_namespaced_service, f"{app['metadata']['name']}-ui-svc"),
        ):
            try:
                delete(name, self._namespace)
            except ApiException as error:
                if error.status != NOT_FOUND:
                    raise

    @staticmethod
    def _is_due(status: Manifest, interval_s: int) -> bool:
        return _age_s(status) >= interval_s * status["submissionAttempts"]


def _set(status: Manifest, state: str, message: str | None = None) -> None:
    old = (status.get("applicationState") or {}).get("errorMessage")
    keeps = state in {"FAILED", "FAILING"} and message is None and old
    text = old if keeps else message
    status["applicationState"] = {"state": state, **({"errorMessage": text} if text else {})}


def _retries(policy: Manifest, limit: str, attempts: int) -> bool:
    if policy["type"] == "Always":
        return True
    return policy["type"] == "OnFailure" and limit in policy and attempts <= policy[limit]


def _terminated(pod: Any) -> Any:
    for each in pod.status.container_statuses or ():
        if each.name == "spark-kubernetes-driver":
            return each.state.terminated
    return None


def _age_s(status: Manifest) -> float:
    return _seconds_since(status["lastSubmissionAttemptTime"])


def _seconds_since(text: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is its log


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for space in sys.argv[2:]:
        threading.Thread(target=SparkOperator(Path(sys.argv[1]), space).run, name=space).start()
