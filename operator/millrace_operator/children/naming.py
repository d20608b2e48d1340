"""What an application's children are called and marked with: names, labels, annotations, ports and paths.

**Names.** An application's name has at most 52 characters (the API server enforces it), because a StatefulSet's pods carry
`<name>-<hash>` in a label of at most 63. No two applications ever have a child of the same kind and name. What is appended to an
application's name therefore has a fixed length (a revision has ten digits), is a number after a hyphen, or begins with a dot,
which no application's name contains: with `<name>-plan`, the applications `orders` and `orders-plan` would share an object.
Children for which there is no function here, one of a kind, have the application's own name.

**Labels.** The label `streams.millrace.dev/app` finds children. It does not prove that they are the operator's: anybody may write
it, or copy it along with an object. So the operator writes and deletes only objects that also carry the uid of the `StreamsApp`
(`app-uid`), or no uid at all: those were written by an operator that did not know the label, or were handed over when an earlier
`StreamsApp` of that name was deleted. Everything else under a name that it needs belongs to somebody else and stays as it is.
Pod templates and claim templates carry no uid: it would make pods roll, and a claim outlives its `StreamsApp`.

**Owner references.** Only the StatefulSet has one, so that tools which draw trees (Argo CD, Lens) show the pods under their
`StreamsApp`. The finalizer deletes what the deletion policy says, in the order that it needs; Kubernetes' garbage collector only
comes after it, or before it with `kubectl delete --cascade=foreground`, and then takes what every policy but `Orphan` takes first
anyway. With `Orphan` there is no reference. The other children have none: the garbage collector must not delete the plans and
manifests that a policy retains. If somebody removes the finalizer by force, pods end and these children stay; delete them with
`kubectl delete all,cm,sa,pdb,netpol,pvc -l streams.millrace.dev/app=NAME`.

**Annotations** give the operator instructions, and hold what it has to remember. What must outlive a pass is stored on the child
that it is about: losing the status then costs nothing.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

from millrace.manifest import API_VERSION
from millrace.manifest.resource import GROUP

MANAGER: Final = "millrace-operator"
APP_LABEL: Final = f"{GROUP}/app"
APP_UID_LABEL: Final = f"{GROUP}/app-uid"
"""The label with the uid of the `StreamsApp` that an object belongs to."""
RETAINED_LABEL: Final = f"{GROUP}/retained"
"""The label of what a deleted `StreamsApp` has left for the next one of its name to be compared with."""
REVISION_LABEL: Final = f"{GROUP}/revision"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
"""The label with the ordinal of a StatefulSet's pod, set by Kubernetes."""

Component = Literal["runtime", "plan"]

PAUSE_ANNOTATION: Final = f"{GROUP}/pause"
"""On a StreamsApp, "true": nothing but the status is written. A deletion of the StreamsApp is still carried out."""

ACCEPT_LOSS_ANNOTATION: Final = f"{GROUP}/accept-loss"
"""On a StreamsApp: the ids of lost internal topics, separated by commas, that may be created again, empty.

It lists ids, not topic names, so that leaving it on the resource does not accept the next loss as well.
"""

APPLIED_ANNOTATION: Final = f"{GROUP}/applied"
"""On every child: a hash of what was applied last."""

FAILED_ANNOTATION: Final = f"{GROUP}/failed"
"""On a revision's ConfigMap: the reason and message for which the revision was rolled back. It is not tried again."""

STARTED_ANNOTATION: Final = f"{GROUP}/started"
"""On a plan's ConfigMap: since when pods of its revision may have written state (seconds since the epoch)."""

TEMPLATE_ANNOTATION: Final = f"{GROUP}/template"
"""On a pod and its template: a hash of the template."""

DRAIN_ANNOTATION: Final = f"{GROUP}/drain"
"""On a pod: since when it should hand over its tasks (seconds since the epoch); its instance reads that from a file.

On the StatefulSet: the uid of that pod and the same time, because the time has to run even if annotating the pod is refused.
"""

NODE_LABELS_ANNOTATION: Final = f"{GROUP}/node-labels"
"""On a pod: the labels of its node that its manifest names, in JSON; its instance reads that from a file."""

FINALIZER: Final = f"{GROUP}/finalizer"
"""Keeps a StreamsApp until its deletion policy is carried out, and a StreamsReset that has begun until it has ended."""

HTTP_PORT: Final = 8080
HTTP_PORT_NAME: Final = "http"


APP_DIR: Final = "/etc/millrace/app"
MANIFEST_PATH: Final = f"{APP_DIR}/streamsapp.yaml"
DRAIN_DIR: Final = "/etc/millrace/drain"
DRAIN_PATH: Final = f"{DRAIN_DIR}/since"
NODE_LABELS_DIR: Final = "/etc/millrace/node"
STATE_DIR: Final = "/var/lib/millrace"
TEMPORARY_DIR: Final = "/tmp"  # noqa: S108 (the pod's own)

LABEL_LENGTH: Final = 63
"""The longest value that a label may have."""
STATE_VOLUME: Final = "state"
"""The name of the claim template, and so of the volume, that holds the state directory."""


def pod(app: str, index: int) -> str:
    """Return the name of a pod."""
    return f"{app}-{index}"


def member(pod: str, uid: str) -> str:
    """Return the name of a pod's stream threads in the consumer group: the prefix of their client ids and instance ids.

    A pod's name alone does not identify the member's owner: an application of the same name, from another namespace or cluster,
    may be in the same group. It has to be in both ids: brokers list a static member that has rejoined under the client id
    that it had first, and members with the same instance id fence each other.

    >>> member("orders-0", "1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    'orders-0.1b4e28ba'
    """
    return f"{pod}.{uid.partition('-')[0]}"


def claim(app: str, index: int) -> str:
    """Return the name of the claim of a pod's state volume, which the StatefulSet's controller gives it."""
    return f"{STATE_VOLUME}-{pod(app, index)}"


def plan_network_policy(app: str) -> str:
    """Return the name of the NetworkPolicy of the application's plan Jobs; that of its pods has the application's name."""
    return f"{app}.plan"


def revision_config_map(app: str, revision: str) -> str:
    """Return the name of the ConfigMap that holds a revision's manifest."""
    return f"{app}-rev-{revision}"


def plan_config_map(app: str, revision: str) -> str:
    """Return the name of the ConfigMap that holds a revision's topology plan."""
    return f"{app}-plan-{revision}"


def retained_config_map(app: str) -> str:
    """Return the name of the ConfigMap that outlives the application with the ids of its topics."""
    return f"{app}.retained"


def plan_job(app: str, revision: str) -> str:
    """Return the name of the Job that computes a revision's plan; with the longest name, it just fits into a label.

    >>> plan_job("orders", "0123456789")
    'orders-0123456789'
    """
    return f"{app}-{revision}"


def is_child(app: str, kind: str, name: str, revision: str | None) -> bool:
    """Return whether an application has, or had with an earlier operator, a child of this kind and name.

    Labels alone are not enough: copying an object copies its labels too.

    Args:
        app: The application.
        kind: The kind of an object with the application's labels; one of those that the operator applies.
        name: Its name.
        revision: The revision in its labels; None if it has none.
    """
    if kind == "ConfigMap":
        own = {retained_config_map(app)}
        if revision is not None:
            own |= {revision_config_map(app, revision), plan_config_map(app, revision)}
        return name in own
    if kind == "Job":
        former = f"{app}-plan-{revision}"  # from an earlier operator
        if len(former) > LABEL_LENGTH:
            former = f"{app[:40].rstrip('-')}-{hashlib.sha256(app.encode()).hexdigest()[:6]}-plan-{revision}"
        return revision is not None and name in {plan_job(app, revision), former}
    if kind == "NetworkPolicy":
        return name in {app, plan_network_policy(app), former_plan_network_policy(app)}
    return name == app


def former_plan_network_policy(app: str) -> str:
    """Return the name that an earlier operator gave the NetworkPolicy of plan Jobs; another application may need it now."""
    return f"{app}-plan"


def labels(app: str, component: Component = "runtime", revision: str | None = None) -> dict[str, str]:
    """Return the labels of a child.

    Args:
        app: The application's name.
        component: What the child belongs to: the running application, or the finding of its plan.
        revision: The revision that the child is of; None for children that serve all revisions.
    """
    return {
        COMPONENT_LABEL: component,
        "app.kubernetes.io/instance": app,
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/name": "millrace-app",
        APP_LABEL: app,
        **({} if revision is None else {REVISION_LABEL: revision}),
    }


def selector(app: str, component: Component = "runtime") -> dict[str, str]:
    """Return the labels by which an application's pods are selected, which never change."""
    return {COMPONENT_LABEL: component, APP_LABEL: app}


def owner_reference(app: str, uid: str) -> dict[str, object]:
    """Return the owner reference by which tools show an object under its `StreamsApp`; it blocks no deletion."""
    return {
        "apiVersion": API_VERSION,
        "kind": "StreamsApp",
        "name": app,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
