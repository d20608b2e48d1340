"""The pod template: how an instance of an application is started, configured, probed and secured.

The container's command is the operator's, so an image needs nothing but Millrace and the program in it. All that a pod reads
comes from its revision's ConfigMap, which the template names, and nothing here depends on the number of replicas or the
time: the same revision gives the same template, until another version of the operator builds it differently. The template's
annotations include a hash of it, so every pod shows which template it was made from.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from millrace.config import GroupProtocol
from millrace.manifest.pods import APP_CONTAINER
from millrace.manifest.secrets import named_secrets
from millrace.manifest.settings import SECRETS_DIR
from millrace_operator.children import naming
from millrace_operator.children.canonical_form import canonical, canonical_list, canonical_quantity
from millrace_operator.children.naming import (
    DRAIN_ANNOTATION,
    HTTP_PORT,
    HTTP_PORT_NAME,
    NODE_LABELS_ANNOTATION,
    POD_INDEX_LABEL,
    TEMPLATE_ANNOTATION,
    labels,
    selector,
)
from millrace_operator.model import AppRevision, Json, Object

USER: Final = 65532
"""User and group of processes in Millrace's images, and the group of volumes."""
DEFAULT_CPU: Final = "100m"
DEFAULT_MEMORY: Final = "512Mi"
SECRET_FILE_MODE: Final = 0o440
DRAIN_FILE_VARIABLE: Final = "MILLRACE_DRAIN_FILE"
"""Names the file that makes a pod drain. It is a variable and not an option, because an image with an older Millrace would refuse
an option that it does not know, and so never start. Such a pod is stopped without being drained, which loses nothing."""

NODE_LABELS_VARIABLE: Final = "MILLRACE_NODE_LABELS"
"""Lists the labels of nodes that a pod wants to be told, separated by commas: what the operator reads."""
_NODE_LABELS_DIR_VARIABLE: Final = "MILLRACE_NODE_LABELS_DIR"
_LEAVE_VARIABLE: Final = "MILLRACE_LEAVE_ON_STOP"
"""Makes a pod that is stopped leave the group, so that standbys go on at once; a static member would keep its tasks until its
session times out. It is a variable for the same reason."""
_LAST_MESSAGE_VARIABLE: Final = "MILLRACE_LAST_MESSAGE_FILE"
_TERMINATION_LOG: Final = "/dev/termination-log"
"""Kubernetes' default: it keeps the file's content in the pod's status when the container has ended."""

Variable = Json
Volume = Json
Mount = Json

RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
}
"""What the Restricted profile demands of a container's securityContext."""
PROBES: Final[Json] = {
    name: {
        "httpGet": {"path": path, "port": HTTP_PORT_NAME, "scheme": "HTTP"},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failure_threshold,
    }
    for name, path, period_seconds, failure_threshold in (
        ("startupProbe", "/startedz", 5, 60),
        ("livenessProbe", "/livez", 10, 3),
        ("readinessProbe", "/readyz", 5, 3),
    )
}
"""The three probes of the container, by name; they use what `millrace run --http` serves (docs/operations.md).

An instance that waits for a broker, restores or rebalances is live, so only what a restart can fix leads to one. The startup
probe is the generous one: it covers finding the brokers and joining the group, which others may hold up. There is no preStop
hook: the process is PID 1 and handles SIGTERM itself (it commits, closes its stores and exits), and it serves no traffic that a
load balancer would first have to redirect.
"""
MANIFEST_MOUNT: Final[Json] = {"name": "app", "mountPath": naming.APP_DIR, "readOnly": True}

_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"
_DRAIN_VOLUME: Final[Json] = {
    "name": "millrace-drain",
    "downwardAPI": {
        "defaultMode": 0o444,
        "items": [
            {
                "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{DRAIN_ANNOTATION}']"},
                "path": naming.DRAIN_PATH.rpartition("/")[2],
            }
        ],
    },
}
"""The volume with the annotation that tells a pod to drain.

It is a file because the kubelet rewrites it as soon as the pod is annotated. So only those who may write pods can have one
drained, and a pod needs no port for it that others could reach.
"""


_NODE_VOLUME: Final[Json] = {
    "name": "millrace-node",
    "downwardAPI": {
        "defaultMode": 0o444,
        "items": [
            {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}, "path": "labels"},
            {
                "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{NODE_LABELS_ANNOTATION}']"},
                "path": "told",
            },
        ],
    },
}
"""The volume with the labels of the pod's node: those that Kubernetes copies to the pod, and those that the operator does."""


def pod_template(app: AppRevision) -> Json:
    """Return the template of an application's pods."""
    template = app.spec.pod_template
    initial = [secured(container) for container in canonical_list(template.init_containers)]
    sidecars = [secured(container) for container in canonical_list(template.sidecars)]
    optional: Json = {
        "dnsConfig": None if template.dns_config is None else canonical(template.dns_config),
        "dnsPolicy": template.dns_policy,
        "hostAliases": canonical_list(template.host_aliases),
        "initContainers": initial,
    }
    item: Json = {
        "metadata": {
            "annotations": {
                "kubectl.kubernetes.io/default-container": APP_CONTAINER,
                **template.metadata.annotations,
            },
            "labels": {**template.metadata.labels, **labels(app.name, revision=app.revision)},
        },
        "spec": {
            **common_pod_fields(app),
            **spread(app),
            **{name: value for name, value in optional.items() if value},
            "containers": [_program(app), *sidecars],
            "terminationGracePeriodSeconds": app.spec.drain.termination_grace_period_seconds,
            "volumes": pod_volumes(app),
        },
    }
    text = json.dumps(item, sort_keys=True, separators=(",", ":"))
    item["metadata"]["annotations"][TEMPLATE_ANNOTATION] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return item


def common_pod_fields(app: AppRevision) -> Json:
    """Return the fields that the spec of every pod of an application has.

    Its securityContext is everything the Restricted profile asks for. The user, group and volume group are those of Millrace's
    image unless the user names others; root is never among them. A volume's ownership is only changed when its root does not have
    it yet, because walking over gigabytes of state at every start would delay it by minutes.
    """
    template = app.spec.pod_template
    optional: Json = {
        "imagePullSecrets": [{"name": secret.name} for secret in app.spec.image_pull_secrets],
        "nodeSelector": dict(template.node_selector),
        "tolerations": canonical_list(template.tolerations),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **{name: value for name, value in optional.items() if value},
        "securityContext": {
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "runAsGroup": USER,
            "runAsUser": USER,
            **canonical(template.security_context),
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "serviceAccountName": app.spec.service_account_name or app.name,
    }


def common_container_fields(app: AppRevision) -> Json:
    """Return the fields that every container with the user's program has; its root filesystem cannot be written."""
    policy = app.spec.image_pull_policy
    return {
        "name": APP_CONTAINER,
        "image": app.spec.image,
        **({} if policy is None else {"imagePullPolicy": policy}),
        "command": ["millrace"],
        "securityContext": {**RESTRICTED, "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _program(app: AppRevision) -> Json:
    sources = canonical_list(app.spec.pod_template.env_from)
    # The StreamsApp's identity is in the ids of its members.
    ids = ["client.id", *(["group.instance.id"] if app.spec.static_members else [])] if app.uid else []
    return {
        **common_container_fields(app),
        "args": [
            "run",
            *("-f", naming.MANIFEST_PATH),
            *("--replica", "$(POD_INDEX)"),
            *("--state-dir", naming.STATE_DIR),
            *("--http", f":{HTTP_PORT}"),  # all addresses, of IPv4 and of IPv6
            *(part for key in ids for part in ("-c", f"{key}={naming.member('$(POD_NAME)', app.uid)}")),
            *("--secrets-dir", str(SECRETS_DIR)),
            *("-c", "__internal.topics.create__=false"),  # the operator creates them, and reports lost ones
        ],
        "env": environment(app),
        **({"envFrom": sources} if sources else {}),
        "ports": [{"containerPort": HTTP_PORT, "name": HTTP_PORT_NAME, "protocol": "TCP"}],
        **PROBES,
        "resources": program_resources(app),
        "volumeMounts": pod_mounts(app),
    }


def environment(app: AppRevision) -> list[Variable]:
    """Return the variables of the program's container; later ones may refer to earlier ones.

    None of the operator's own holds a secret. What the operator sets wins over the user's variable of that name, except for those
    that only describe the application (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).
    """
    users = {variable["name"]: variable for variable in canonical_list(app.spec.pod_template.env)}
    fields = {
        "POD_NAME": "metadata.name",
        "POD_UID": "metadata.uid",
        "POD_INDEX": f"metadata.labels['{POD_INDEX_LABEL}']",
        "POD_NODE_NAME": "spec.nodeName",
    }
    variables: list[Variable] = [
        *(
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in fields.items()
        ),
        {"name": DRAIN_FILE_VARIABLE, "value": naming.DRAIN_PATH},
        {"name": _LAST_MESSAGE_VARIABLE, "value": _TERMINATION_LOG},
        *([{"name": _LEAVE_VARIABLE, "value": "true"}] if _leaves_on_stop(app) else []),
        *_node_variables(app),
        {"name": "OTEL_SERVICE_NAME", "value": app.spec.application_id},
        _attributes(app, users.pop(_ATTRIBUTES, None)),
        *users.values(),
        *exporter_variables(app),
    ]
    return list({variable["name"]: variable for variable in variables}.values())


def exporter_variables(app: AppRevision) -> list[Variable]:
    """Return the variables that say where metrics and traces go; none if the manifest does not."""
    otlp = app.spec.observability.otlp
    if otlp is None:
        return []
    exporter = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp.endpoint, "OTEL_TRACES_SAMPLER": str(otlp.sampler.type)}
    if otlp.sampler.ratio is not None:
        exporter["OTEL_TRACES_SAMPLER_ARG"] = str(otlp.sampler.ratio)
    return [{"name": name, "value": value} for name, value in exporter.items()]


def _leaves_on_stop(app: AppRevision) -> bool:
    """Return whether pods have to be told to leave; dynamic members do so anyway, and all are if the brokers assign the tasks."""
    return bool(app.spec.standby.replicas) and app.spec.kafka.group_protocol is GroupProtocol.CLASSIC


def _node_variables(app: AppRevision) -> list[Variable]:
    if app.spec.racks is None:
        return []
    wanted = dict.fromkeys(app.spec.racks.labels_by_tag.values())
    return [
        {"name": NODE_LABELS_VARIABLE, "value": ",".join(wanted)},
        {"name": _NODE_LABELS_DIR_VARIABLE, "value": naming.NODE_LABELS_DIR},
    ]


def _attributes(app: AppRevision, users: Variable | None) -> Variable:
    if users is not None and "value" not in users:
        return users
    attributes = {
        "k8s.namespace.name": app.namespace,
        "k8s.statefulset.name": app.name,
        "k8s.pod.name": "$(POD_NAME)",
        "k8s.node.name": "$(POD_NODE_NAME)",
        "k8s.container.name": APP_CONTAINER,
    }
    own = ",".join(f"{name}={value}" for name, value in attributes.items())
    return {"name": _ATTRIBUTES, "value": own if users is None else f"{own},{users['value']}"}


def pod_volumes(app: AppRevision) -> list[Volume]:
    """Return the volumes of a pod; the one for its state comes from the StatefulSet's claim template."""
    sources = secret_sources(app)
    secrets = (
        [{"name": "secrets", "projected": {"defaultMode": SECRET_FILE_MODE, "sources": sources}}] if sources else []
    )
    return [
        manifest_volume(app),
        _DRAIN_VOLUME,
        *([] if app.spec.racks is None else [_NODE_VOLUME]),
        *secrets,
        {"name": "tmp", "emptyDir": {}},
        *canonical_list(app.spec.pod_template.volumes),
    ]


def pod_mounts(app: AppRevision) -> list[Mount]:
    """Return where the program's container finds its volumes.

    Folders are mounted whole, never by subPath: otherwise changes of a Secret would not arrive.
    """
    secrets = [{"name": "secrets", "mountPath": str(SECRETS_DIR), "readOnly": True}] if secret_sources(app) else []
    users = canonical_list(app.spec.pod_template.volume_mounts)
    return [
        MANIFEST_MOUNT,
        {"name": _DRAIN_VOLUME["name"], "mountPath": naming.DRAIN_DIR, "readOnly": True},
        *(
            []
            if app.spec.racks is None
            else [{"name": _NODE_VOLUME["name"], "mountPath": naming.NODE_LABELS_DIR, "readOnly": True}]
        ),
        *secrets,
        {"name": naming.STATE_VOLUME, "mountPath": naming.STATE_DIR},
        *temporary_mount(users),
        *users,
    ]


def manifest_volume(app: AppRevision) -> Volume:
    """Return the volume with the manifest of the revision."""
    name = naming.revision_config_map(app.name, app.revision)
    return {"name": "app", "configMap": {"name": name, "defaultMode": 0o444}}


def temporary_mount(users: list[Mount]) -> list[Mount]:
    """Return the mount of `/tmp`, as the root filesystem is read-only; none if the user mounts something there."""
    if any(mount["mountPath"].rstrip("/") == naming.TEMPORARY_DIR for mount in users):
        return []
    return [{"name": "tmp", "mountPath": naming.TEMPORARY_DIR}]


def secret_sources(app: AppRevision) -> list[Json]:
    """Return the sources of the projected volume of an application's secrets, one folder per purpose; empty if it has none.

    Secrets are files because files follow a Secret when it changes, which environment variables do not. Only the keys that have a
    meaning are projected, under the names that the program looks for, whatever the Secret calls them. A Secret without a required
    key keeps the pod from starting, with an Event that names it; an application without its credentials would only fail later and
    less clearly. Where a Secret may have one key or another, the program says at its start what is missing.
    """
    sources: list[Json] = []
    for secret in named_secrets(app.spec):
        required = secret.required
        rest = tuple(key for key in secret.keys if key not in required)
        for keys, optional in ((required, False), (rest, True)):
            if keys:
                items = [{"key": secret.reference.key(key), "path": f"{secret.folder}/{key}"} for key in keys]
                sources.append({"secret": {"name": secret.reference.name, "items": items, "optional": optional}})
    return sources


def spread(app: AppRevision) -> Json:
    """Return the fields of a pod's spec that keep replicas apart, over nodes and zones, as far as possible.

    A node that is lost then takes only one replica with it. It is a preference, because two replicas on one node are better than
    one that waits. What the user specifies replaces the operator's default of that kind.
    """
    template, pods = app.spec.pod_template, {"labelSelector": {"matchLabels": selector(app.name)}}
    apart = {"podAffinityTerm": {**pods, "topologyKey": "kubernetes.io/hostname"}, "weight": 100}
    over_zones = {
        **pods,
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
    }
    users = [{**pods, **constraint} for constraint in canonical_list(template.topology_spread_constraints)]
    return {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}}
        if template.affinity is None
        else canonical(template.affinity),
        "topologySpreadConstraints": users or [over_zones],
    }


def secured(container: Object) -> Json:
    """Return a user's container, with whatever its securityContext leaves open set as Restricted demands.

    What it does specify stays: whether a namespace admits it is the cluster's decision. Its root filesystem is its own affair.
    """
    return {**container, "securityContext": {**RESTRICTED, **container.get("securityContext", {})}}


def program_resources(app: AppRevision) -> Json:
    """Return the resources of the program's container: the user's, completed.

    There is always a memory limit, because RocksDB's share of the memory is a fraction of it, and the request is as large,
    because state does not shrink when a node runs short of memory. CPU has no limit unless the user sets one: throttling looks
    like a stuck thread.
    """
    wanted = app.spec.pod_template.resources
    requests = {name: canonical_quantity(amount) for name, amount in wanted.requests.items()}
    limits = {name: canonical_quantity(amount) for name, amount in wanted.limits.items()}
    memory = limits.get("memory") or requests.get("memory") or DEFAULT_MEMORY
    limits.setdefault("memory", memory)
    requests.setdefault("memory", memory)
    requests.setdefault("cpu", limits.get("cpu", DEFAULT_CPU))
    return {"limits": limits, "requests": requests}
