"""The command line with which kubeflow's Spark operator 2.5.2 submits a SparkApplication.

An option of `spark-submit` for each field, and the pod templates in files. What the operator does through its webhook for pods
(`env`, `volumes`, `tolerations`, … of driver and executor) nobody does here. So a field that is not listed is an error and never
ignored: a SparkApplication that works here works there.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

Manifest = dict[str, Any]

API_VERSION: Final = "sparkoperator.k8s.io/v1beta2"
LABELS: Final = "sparkoperator.k8s.io/"
_CONTAINERS: Final = {"driver": "spark-kubernetes-driver", "executor": "spark-kubernetes-executor"}
_NETWORK_POLICY: Final = "org.apache.spark.deploy.k8s.features.NetworkPolicyFeatureStep"
_ANY_ROLE: Final = {"cores", "memory", "memoryOverhead", "coreRequest", "coreLimit", "serviceAccount", "javaOptions"}
_KNOWN: Final = {
    "spec": {
        *("type", "mode", "pythonVersion", "sparkVersion", "image", "imagePullPolicy", "imagePullSecrets", "mainClass"),
        *("mainApplicationFile", "arguments", "sparkConf", "restartPolicy", "driver", "executor", "timeToLiveSeconds"),
    },
    "driver": {*_ANY_ROLE, "podName", "labels", "annotations", "template"},
    "executor": {*_ANY_ROLE, "instances", "deleteOnTermination", "labels", "annotations", "template"},
}


class UnsupportedError(Exception):
    """A field that only the real operator knows."""


def with_defaults(app: Manifest) -> Manifest:
    """Return a SparkApplication with the defaults of the operator's webhook."""
    app = copy.deepcopy(app)
    spec = app["spec"]
    conf = spec.get("sparkConf") or {}
    spec.setdefault("type", "Scala")
    spec.setdefault("mode", "cluster")
    restart = spec.setdefault("restartPolicy", {})
    restart.setdefault("type", "Never")
    if restart["type"] != "Never":
        restart.setdefault("onFailureRetryInterval", 5)
        restart.setdefault("onSubmissionFailureRetryInterval", 5)
    for role in ("driver", "executor"):
        for field, value in (("cores", 1), ("memory", "1g")):
            if f"spark.{role}.{field}" not in conf:
                spec[role].setdefault(field, value)
    if "spark.executor.instances" not in conf:
        spec["executor"].setdefault("instances", 1)
    return app


def driver_pod_name(app: Manifest) -> str:
    """Return the name of the driver's pod."""
    spec = app["spec"]
    given = spec["driver"].get("podName") or (spec.get("sparkConf") or {}).get("spark.kubernetes.driver.pod.name")
    return str(given or f"{app['metadata']['name']}-driver")


def owner_reference(app: Manifest) -> Manifest:
    """Return the reference with which the driver and its service belong to their application."""
    return {
        "apiVersion": API_VERSION,
        "kind": "SparkApplication",
        "name": app["metadata"]["name"],
        "uid": app["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def arguments(app: Manifest, submission: str, master: str, folder: Path) -> list[str]:
    """Return the arguments of `spark-submit`.

    Args:
        app: The SparkApplication with defaults.
        submission: An id for this submission.
        master: The address of the API server.
        folder: Where the pod templates are written.

    Raises:
        UnsupportedError: It has a field that only the real operator knows.
    """
    spec = app["spec"]
    for name, known in _KNOWN.items():
        unknown = (spec if name == "spec" else spec[name]).keys() - known
        if unknown:
            raise UnsupportedError(f"{name}: {', '.join(sorted(unknown))}")
    settings = dict(_settings(app, submission))
    for role in ("driver", "executor"):
        file = folder / f"{role}-pod-template.yaml"
        file.write_text(json.dumps(_template(app, role)))
        settings[f"spark.kubernetes.{role}.podTemplateFile"] = str(file)
        settings[f"spark.kubernetes.{role}.podTemplateContainerName"] = _CONTAINERS[role]
    given = ["--master", f"k8s://{master}", "--deploy-mode", spec["mode"]]
    given += ["--class", spec["mainClass"]] if "mainClass" in spec else []
    given += ["--name", app["metadata"]["name"]]
    for key, value in settings.items():
        given += ["--conf", f"{key}={value}"]
    return [*given, spec["mainApplicationFile"], *spec.get("arguments", ())]


def _settings(app: Manifest, submission: str) -> Iterator[tuple[str, object]]:
    """Yield Spark's settings; of two with the same name the later one counts."""
    spec = app["spec"]
    yield "spark.kubernetes.namespace", app["metadata"]["namespace"]
    for field, name in (
        ("image", "container.image"),
        ("imagePullPolicy", "container.image.pullPolicy"),
        ("pythonVersion", "pyspark.pythonVersion"),
    ):
        if spec.get(field):
            yield f"spark.kubernetes.{name}", spec[field]
    if spec.get("imagePullSecrets"):
        yield "spark.kubernetes.container.image.pullSecrets", ",".join(spec["imagePullSecrets"])
    yield "spark.kubernetes.submission.waitAppCompletion", "false"
    # The operator's image has Spark 4.0, which does not create network policies yet. Its chart gives no right to do so.
    yield "spark.kubernetes.driver.pod.excludedFeatureSteps", _NETWORK_POLICY
    yield from (spec.get("sparkConf") or {}).items()
    yield "spark.kubernetes.driver.pod.name", driver_pod_name(app)
    yield from _of_role(app, "driver", submission)
    yield from _of_role(app, "executor", submission)


def _of_role(app: Manifest, role: str, submission: str) -> Iterator[tuple[str, object]]:
    given, kubernetes = app["spec"][role], f"spark.kubernetes.{role}"
    if app["spec"].get("image"):
        yield f"{kubernetes}.container.image", app["spec"]["image"]
    for field, setting in (
        ("instances", f"spark.{role}.instances"),
        ("cores", f"spark.{role}.cores"),
        ("coreRequest", f"{kubernetes}.request.cores"),
        ("coreLimit", f"{kubernetes}.limit.cores"),
        ("memory", f"spark.{role}.memory"),
        ("memoryOverhead", f"spark.{role}.memoryOverhead"),
        ("serviceAccount", f"spark.kubernetes.authenticate.{role}.serviceAccountName"),
        ("javaOptions", f"spark.{role}.extraJavaOptions"),
    ):
        if field in given:
            yield setting, given[field]
    if "deleteOnTermination" in given:
        yield f"{kubernetes}.deleteOnTermination", str(given["deleteOnTermination"]).lower()
    own = {
        f"{LABELS}app-name": app["metadata"]["name"],
        f"{LABELS}launched-by-spark-operator": "true",
        f"{LABELS}submission-id": submission,
    }
    labels: Mapping[str, str] = {**own, **(app["metadata"].get("labels") or {}), **(given.get("labels") or {})}
    for key, value in labels.items():
        yield f"{kubernetes}.label.{key}", value
    for key, value in (given.get("annotations") or {}).items():
        yield f"{kubernetes}.annotation.{key}", value


def _template(app: Manifest, role: str) -> Manifest:
    """Return the pod template, which must exist: without one the operator's webhook for pods would have work to do."""
    template = copy.deepcopy(app["spec"][role].get("template"))
    if template is None:
        raise UnsupportedError(f"{role} without template")
    owner = owner_reference(app)
    if role == "executor":
        del owner["controller"], owner["blockOwnerDeletion"]
    template.setdefault("metadata", {}).setdefault("ownerReferences", []).append(owner)
    return template
