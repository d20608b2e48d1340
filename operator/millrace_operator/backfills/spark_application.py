"""Builds the SparkApplication of an attempt, of either kind, and reads its state.

Both kinds get the same pod templates: the same user, mounts and variables as the application's pods, so a namespace that admits
those admits these. Neither tries anything again by itself, because only the operator knows whether that makes sense; and
neither deletes its driver, whose log is the result.

Everything that a pod reads is in one ConfigMap of the backfill's own, so that it does not matter what becomes of the
application's revisions meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from millrace.manifest import API_VERSION, GROUP, StreamsBackfillSpec
from millrace.manifest.fields import quantity_value
from millrace.manifest.settings import SECRETS_DIR
from millrace_operator.children import naming
from millrace_operator.children.canonical_form import canonical_list
from millrace_operator.children.pod import (
    RESTRICTED,
    SECRET_FILE_MODE,
    common_pod_fields,
    exporter_variables,
    secret_sources,
    temporary_mount,
)
from millrace_operator.model import AppRevision, Json, Object

SPARK_VERSION: Final = "4.3.0"
SPARK_GROUPS: Final = {"SparkOperator": "sparkoperator.k8s.io/v1beta2", "Apache": "spark.apache.org/v1"}
"""The API versions of both Spark operators, the more common one first."""
BACKFILL_LABEL: Final = f"{GROUP}/backfill"
BACKFILL_UID_LABEL: Final = f"{GROUP}/backfill-uid"
ATTEMPT_LABEL: Final = f"{GROUP}/backfill-attempt"
DRIVER_CONTAINER: Final = "spark-kubernetes-driver"
EXECUTOR_CONTAINER: Final = "spark-kubernetes-executor"
"""Spark names the containers as their templates do, and these are the names that both Spark operators look for."""
INPUT_DIR: Final = "/etc/millrace/backfill"
_LONGEST_ERROR: Final = 1500
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_MAIN: Final = 'import runpy\n\nrunpy.run_module("millrace.cli.spark_driver", run_name="__main__", alter_sys=True)\n'

Role = Literal["driver", "executor"]
SparkState = Literal["New", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """All that the objects of one attempt are made from."""

    name: str
    """The StreamsBackfill's."""
    uid: str
    number: int
    spec: StreamsBackfillSpec
    app: AppRevision
    manifest: Object
    """The application's spec as the user wrote it."""
    plan_hash: str

    @property
    def labels(self) -> dict[str, str]:
        """The labels of everything that belongs to it."""
        return {**self.own, ATTEMPT_LABEL: str(self.number)}

    @property
    def own(self) -> dict[str, str]:
        """The labels of everything that belongs to the backfill; the chart's admission policy asks for the operator's."""
        return {_MANAGED_BY: naming.MANAGER, BACKFILL_LABEL: self.name, BACKFILL_UID_LABEL: self.uid}


def application_name(backfill: str, attempt: int) -> str:
    """Return the name of an attempt's SparkApplication, which leaves room for what Spark operators append."""
    return f"{backfill}-{attempt}"


def is_of_backfill(labels: Mapping[str, str], backfill: str) -> bool:
    """Return whether an object with these labels belongs to a backfill of this name, which may be an earlier one."""
    return labels.get(_MANAGED_BY) == naming.MANAGER and labels.get(BACKFILL_LABEL) == backfill


def config_map_name(backfill: str) -> str:
    """Return the name of the ConfigMap of a backfill's attempts."""
    return f"{backfill}.backfill"


def config_map(attempt: Attempt) -> Json:
    """Return the ConfigMap with what the job reads: the application's manifest and the source."""
    app = attempt.app
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "StreamsApp",
        "metadata": {"name": app.name, "namespace": app.namespace},
        "spec": attempt.manifest,
    }
    source = attempt.spec.source.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(attempt.name),
            "namespace": app.namespace,
            "labels": attempt.own,
            "ownerReferences": [_owner(attempt)],
        },
        "immutable": True,
        "data": {
            "main.py": _MAIN,
            "source.json": json.dumps(source, sort_keys=True, ensure_ascii=False),
            "streamsapp.yaml": json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n",
        },
    }


def spark_application(attempt: Attempt, api_version: str) -> Json:
    """Return the SparkApplication of an attempt.

    Args:
        attempt: The attempt.
        api_version: One of `SPARK_GROUPS`: the kind that the cluster serves.
    """
    spec = _of_spark_operator(attempt) if api_version == SPARK_GROUPS["SparkOperator"] else _of_apache(attempt)
    return {
        "apiVersion": api_version,
        "kind": "SparkApplication",
        "metadata": {
            "name": application_name(attempt.name, attempt.number),
            "namespace": attempt.app.namespace,
            "labels": attempt.labels,
            "ownerReferences": [_owner(attempt)],
        },
        "spec": spec,
    }


def _of_spark_operator(attempt: Attempt) -> Json:
    spec, app = attempt.spec, attempt.app.spec
    policy = app.image_pull_policy
    secrets = [secret.name for secret in app.image_pull_secrets]
    return {
        "type": "Python",
        "mode": "cluster",
        "pythonVersion": "3",
        "sparkVersion": SPARK_VERSION,
        "image": spec.image or app.image,
        **({} if policy is None else {"imagePullPolicy": policy}),
        **({"imagePullSecrets": secrets} if secrets else {}),
        "mainApplicationFile": f"local://{INPUT_DIR}/main.py",
        "arguments": arguments(attempt),
        "sparkConf": _settings(spec),
        "restartPolicy": {"type": "Never"},
        "driver": {
            "cores": spec.driver.cores,
            "memory": _heap(spec.driver.memory),
            "memoryOverhead": _overhead(spec.driver.memory),
            "serviceAccount": spec.driver.service_account_name,
            "labels": attempt.labels,
            "template": _pod_template(attempt, "driver"),
        },
        "executor": {
            "instances": spec.executors.instances,
            "cores": spec.executors.cores,
            "memory": _heap(spec.executors.memory),
            "memoryOverhead": _overhead(spec.executors.memory),
            "serviceAccount": _executors_account(attempt),
            "labels": attempt.labels,
            "template": _pod_template(attempt, "executor"),
        },
    }


def _of_apache(attempt: Attempt) -> Json:
    spec, app = attempt.spec, attempt.app.spec
    policy = app.image_pull_policy
    secrets = ",".join(secret.name for secret in app.image_pull_secrets)
    return {
        "runtimeVersions": {"sparkVersion": SPARK_VERSION, "scalaVersion": "2.13"},
        "deploymentMode": "ClusterMode",
        "mainClass": "org.apache.spark.deploy.PythonRunner",
        "pyFiles": f"local://{INPUT_DIR}/main.py",
        "driverArgs": arguments(attempt),
        "sparkConf": {
            **_settings(spec),
            "spark.driver.cores": str(spec.driver.cores),
            "spark.driver.memory": _heap(spec.driver.memory),
            "spark.driver.memoryOverhead": _overhead(spec.driver.memory),
            "spark.executor.cores": str(spec.executors.cores),
            "spark.executor.instances": str(spec.executors.instances),
            "spark.executor.memory": _heap(spec.executors.memory),
            "spark.executor.memoryOverhead": _overhead(spec.executors.memory),
            "spark.kubernetes.authenticate.driver.serviceAccountName": spec.driver.service_account_name,
            "spark.kubernetes.authenticate.executor.serviceAccountName": _executors_account(attempt),
            "spark.kubernetes.container.image": spec.image or app.image,
            **({} if policy is None else {"spark.kubernetes.container.image.pullPolicy": policy}),
            **({"spark.kubernetes.container.image.pullSecrets": secrets} if secrets else {}),
        },
        "applicationTolerations": {
            "resourceRetainPolicy": "Always",
            "restartConfig": {"restartPolicy": "Never"},
        },
        "driverSpec": {"podTemplateSpec": _pod_template(attempt, "driver")},
        "executorSpec": {"podTemplateSpec": _pod_template(attempt, "executor")},
    }


def arguments(attempt: Attempt) -> list[str]:
    """Return the arguments of the job, which are those of `millrace backfill`."""
    spec = attempt.spec
    return [
        *("-f", f"{INPUT_DIR}/streamsapp.yaml"),
        *("--from", f"{INPUT_DIR}/source.json"),
        *("--outputs", spec.outputs.lower()),
        *("--transaction-records", str(spec.transaction_records)),
        *("--sink", spec.sink),
        *("--secrets-dir", str(SECRETS_DIR)),
        *("--plan-hash", attempt.plan_hash),
        *("--progress", "json"),
        *("--attempt-of", attempt.uid),
        *(["--dry-run"] if spec.dry_run else []),
        *(["--allow-missing-history"] if spec.allow_missing_history else []),
        *(["--allow-side-effects"] if spec.allow_side_effects else []),
        *(["--ignore-wall-clock"] if spec.ignore_wall_clock else []),
    ]


def _settings(spec: StreamsBackfillSpec) -> dict[str, str]:
    # A task runs over all of its history, and after these failures there is another attempt: twice is enough.
    # Adaptive execution would merge partitions, and with them tasks of the topology.
    # In heaps below 4 GB Java's regions have 1 MB: rows of 1 MB would take up two of them each, and not be moved.
    return {
        "spark.driver.defaultJavaOptions": "-XX:G1HeapRegionSize=4m",
        "spark.executor.defaultJavaOptions": "-XX:G1HeapRegionSize=4m",
        "spark.kubernetes.executor.deleteOnTermination": "true",
        "spark.task.maxFailures": "2",
        **spec.spark_conf,
        "spark.sql.adaptive.enabled": "false",
    }


def _pod_template(attempt: Attempt, role: Role) -> Json:
    """Return a template: like the application's pods, except for what Spark sets itself."""
    app, template = attempt.app, attempt.app.spec.pod_template
    sources = canonical_list(template.env_from)
    variables = [
        {"name": "OTEL_SERVICE_NAME", "value": app.spec.application_id},
        *canonical_list(template.env),
        *exporter_variables(app),
    ]
    variables = list({variable["name"]: variable for variable in variables}.values())
    secrets = secret_sources(app)
    users = canonical_list(template.volume_mounts)
    mounts = [
        {"name": "backfill", "mountPath": INPUT_DIR, "readOnly": True},
        *([{"name": "secrets", "mountPath": str(SECRETS_DIR), "readOnly": True}] if secrets else []),
        *temporary_mount(users),
        *users,
    ]
    volumes: list[Json] = [
        {"name": "backfill", "configMap": {"name": config_map_name(attempt.name), "defaultMode": 0o444}},
        *([{"name": "secrets", "projected": {"defaultMode": SECRET_FILE_MODE, "sources": secrets}}] if secrets else []),
        {"name": "tmp", "emptyDir": {}},
        *canonical_list(template.volumes),
    ]
    is_driver = role == "driver"
    account = attempt.spec.driver.service_account_name if is_driver else _executors_account(attempt)
    return {
        "metadata": {
            "annotations": dict(template.metadata.annotations),
            "labels": {**template.metadata.labels, **attempt.labels, naming.COMPONENT_LABEL: f"backfill-{role}"},
        },
        "spec": {
            **common_pod_fields(app),
            "automountServiceAccountToken": is_driver,  # the driver creates the executors
            "serviceAccountName": account,
            "containers": [
                {
                    "name": DRIVER_CONTAINER if is_driver else EXECUTOR_CONTAINER,
                    "env": variables,
                    **({"envFrom": sources} if sources else {}),
                    "securityContext": {**RESTRICTED, "readOnlyRootFilesystem": True},
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def _executors_account(attempt: Attempt) -> str:
    """Return the application's account, as a setting too: Spark 4.3 ignores a template's and would give them the driver's."""
    return attempt.app.spec.service_account_name or attempt.app.name


def _owner(attempt: Attempt) -> Json:
    """Return the owner of all that belongs to an attempt.

    While the backfill runs, its finalizer and the operator take care of them. After that they stay for their logs without a
    finalizer, so that the backfill can be deleted even if there is no operator any more: the garbage collector deletes them then.
    If a backfill that runs is deleted in the foreground, it deletes them at once, and the operator repeats a job that published.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "StreamsBackfill",
        "name": attempt.name,
        "uid": attempt.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _heap(memory: str) -> str:
    return f"{_mebibytes(memory) // 2}m"


def _overhead(memory: str) -> str:
    """Return what the pod has besides the Java heap, above all for Python and RocksDB."""
    whole = _mebibytes(memory)
    return f"{whole - whole // 2}m"


def _mebibytes(memory: str) -> int:
    return int(quantity_value(memory)) >> 20


def state_of(application: Object) -> SparkState:
    """Return how far a SparkApplication of either kind has come.

    >>> state_of({"apiVersion": "sparkoperator.k8s.io/v1beta2", "status": {"applicationState": {"state": "COMPLETED"}}})
    'Succeeded'
    """
    states = [state.replace("_", "").lower() for state in _states(application)]
    if not states:
        return "New"
    if any(state in {"completed", "succeeded"} for state in states):
        return "Succeeded"
    last = states[-1]
    if application["apiVersion"] == SPARK_GROUPS["SparkOperator"]:
        ended = last in {"failed", "submissionfailed"}
    else:
        ended = last in _ENDED_BADLY or any(state in _ENDED_BADLY for state in states)
    if ended:
        return "Failed"
    return "New" if last in {"", "new", "submitted"} else "Running"


_ENDED_BADLY: Final = frozenset(
    {
        "driverevicted",
        "driverreadytimedout",
        "driverstarttimedout",
        "executorsstarttimedout",
        "failed",
        "resourcereleased",
        "schedulingfailure",
        "terminatedwithoutreleaseresources",
    }
)
"""States of Apache's kind, without its success, after which nothing is tried again."""


def shown_state(application: Object) -> str:
    """Return the state as the Spark operator names it; empty if it has none yet."""
    states = _states(application)
    return states[-1] if states else ""


def _states(application: Object) -> list[str]:
    """Return the states that an application went through, as far as its status has them; the last is the current one."""
    status = application.get("status") or {}
    if application["apiVersion"] == SPARK_GROUPS["SparkOperator"]:
        state = (status.get("applicationState") or {}).get("state")
        return [str(state)] if state else []
    history = status.get("stateTransitionHistory") or {}
    numbered = sorted(history.items(), key=lambda entry: int(entry[0]))
    states = [str(item["currentStateSummary"]) for _, item in numbered]
    current = (status.get("currentState") or {}).get("currentStateSummary")
    return [*states, str(current)] if current and states[-1:] != [current] else states


def error_of(application: Object) -> str:
    """Return why a SparkApplication failed, in the Spark operator's words; empty if it gives none.

    Kubeflow's gives all that `spark-submit` has printed, of which the first exception is the reason.
    """
    status = application.get("status") or {}
    message = (status.get("applicationState") or {}).get("errorMessage") or (status.get("currentState") or {}).get(
        "message"
    )
    lines = [line for line in str(message or "").splitlines() if not line.startswith("\t")]
    raised = next((number for number, line in enumerate(lines) if "Exception" in line), None)
    return "\n".join(lines)[-_LONGEST_ERROR:] if raised is None else "\n".join(lines[raised:])[:_LONGEST_ERROR]


def web_ui_of(application: Object) -> str | None:
    """Return where Spark's user interface is, as far as the Spark operator says so."""
    driver = (application.get("status") or {}).get("driverInfo") or {}
    if ingress := driver.get("webUIIngressAddress"):
        return str(ingress)
    service, port = driver.get("webUIServiceName"), driver.get("webUIPort") or 4040
    return f"http://{service}.{application['metadata']['namespace']}:{port}" if service else None
