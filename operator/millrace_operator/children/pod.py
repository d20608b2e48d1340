"""The pod template: how an instance of an application is started, watched and secured.

The container's command is the operator's, so an image needs nothing but Millrace and the program in it. All that a pod reads
comes from its revision's ConfigMap, which the template names, and nothing here depends on the number of replicas or the
time: the same revision gives the same template, until another version of the operator builds it differently. A hash of the
template stands among its own annotations, so that a pod tells by which one it was made.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from millrace.manifest.pods import APP_CONTAINER
from millrace.manifest.resource import GROUP
from millrace.manifest.settings import SECRETS_DIR
from millrace_operator.children import names, paths
from millrace_operator.children.app import AppRevision
from millrace_operator.children.environment import environment, environment_sources
from millrace_operator.children.labels import labels
from millrace_operator.children.passed_on import all_as_kept
from millrace_operator.children.ports import HTTP_PORT, HTTP_PORT_NAME
from millrace_operator.children.probes import probes
from millrace_operator.children.resources import program_resources
from millrace_operator.children.scheduling import names_and_addresses, placement, spread
from millrace_operator.children.security import container_security_context, pod_security_context, secured
from millrace_operator.children.volumes import pod_mounts, pod_volumes

TEMPLATE: Final = f"{GROUP}/template"
"""On a pod and its template: a hash of the template."""
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


def pod_template(app: AppRevision) -> dict[str, Any]:
    """Return the template of an application's pods."""
    template = app.spec.pod_template
    initial = [secured(container) for container in all_as_kept(template.init_containers)]
    sidecars = [secured(container) for container in all_as_kept(template.sidecars)]
    item: dict[str, Any] = {
        "metadata": {
            "annotations": {_DEFAULT_CONTAINER: APP_CONTAINER, **template.metadata.annotations},
            "labels": {**template.metadata.labels, **labels(app.name, revision=app.revision)},
        },
        "spec": {
            **common_pod_fields(app),
            **spread(app),
            **names_and_addresses(app),
            "containers": [_program(app), *sidecars],
            **({"initContainers": initial} if initial else {}),
            "terminationGracePeriodSeconds": app.spec.drain.termination_grace_period_seconds,
            "volumes": pod_volumes(app),
        },
    }
    canonical = json.dumps(item, sort_keys=True, separators=(",", ":"))
    item["metadata"]["annotations"][TEMPLATE] = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    return item


def common_pod_fields(app: AppRevision) -> dict[str, Any]:
    """Return the fields that the spec of every pod of an application has."""
    pull_secrets = [{"name": secret.name} for secret in app.spec.image_pull_secrets]
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
        **placement(app),
        "securityContext": pod_security_context(app),
        "serviceAccountName": app.spec.service_account_name or names.service_account(app.name),
    }


def common_container_fields(app: AppRevision) -> dict[str, Any]:
    """Return the fields that every container with the user's program has."""
    policy = app.spec.image_pull_policy
    return {
        "name": APP_CONTAINER,
        "image": app.spec.image,
        **({} if policy is None else {"imagePullPolicy": policy}),
        "command": ["millrace"],
        "securityContext": container_security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _membership(app: AppRevision) -> list[str]:
    """Return the options by which the instance says in the group whose it is."""
    if not app.uid:
        return []
    keys = ["client.id", *(["group.instance.id"] if app.spec.membership.static else [])]
    return [part for key in keys for part in ("-c", f"{key}={names.member('$(POD_NAME)', app.uid)}")]


def _program(app: AppRevision) -> dict[str, Any]:
    sources = environment_sources(app)
    return {
        **common_container_fields(app),
        "args": [
            "run",
            *("-f", paths.MANIFEST),
            *("--replica", "$(POD_INDEX)"),
            *("--state-dir", paths.STATE),
            *("--http", f":{HTTP_PORT}"),  # all addresses, of IPv4 and of IPv6
            *_membership(app),
            *("--secrets-dir", str(SECRETS_DIR)),
            *("-c", "__internal.topics.create__=false"),  # the operator creates them, and tells of one that was lost
        ],
        "env": environment(app),
        **({"envFrom": sources} if sources else {}),
        "ports": [{"containerPort": HTTP_PORT, "name": HTTP_PORT_NAME, "protocol": "TCP"}],
        **probes(),
        "resources": program_resources(app),
        "volumeMounts": pod_mounts(app),
    }
