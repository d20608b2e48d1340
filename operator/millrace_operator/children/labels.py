"""What marks an object as a child of an application: labels, and for the StatefulSet an owner reference.

The label `streams.millrace.dev/app` finds children. It does not prove that they are the operator's: anybody may write it, or copy
it with an object. So the operator writes and deletes only objects that also carry the uid of the `StreamsApp` (`app-uid`), or no
uid at all: those were written by an operator that did not know the label, or were handed over when an earlier `StreamsApp` of
the name was deleted. Everything else under a name that it needs is somebody else's, and stays as it is.

Pod templates and claim templates carry no uid: it would make pods roll, and a claim outlives its `StreamsApp`.

Only the StatefulSet has an **owner reference**, so that tools which draw trees (Argo CD, Lens) show the pods under their
`StreamsApp`. The finalizer deletes what the deletion policy says, and in the order that it needs; Kubernetes' garbage collector
only comes after it, or before it with `kubectl delete --cascade=foreground`, and then takes what every policy but `Orphan` takes
first anyway. With `Orphan` there is no reference. The other children have none: the garbage collector must not delete the plans
and the manifests that a policy retains. If somebody takes the finalizer off by force, pods end and these children stay; delete
them with `kubectl delete all,cm,sa,pdb,netpol,pvc -l streams.millrace.dev/app=NAME`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from millrace.manifest import API_VERSION, GROUP

MANAGER: Final = "millrace-operator"
APP: Final = f"{GROUP}/app"
APP_UID: Final = f"{GROUP}/app-uid"
"""The label with the uid of the `StreamsApp` that an object belongs to."""
RETAINED: Final = f"{GROUP}/retained"
"""The label of what a deleted `StreamsApp` has left for the next one of its name to be compared with."""
REVISION: Final = f"{GROUP}/revision"
COMPONENT: Final = "app.kubernetes.io/component"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
"""The label in which Kubernetes tells a StatefulSet's pod its ordinal."""

Component = Literal["runtime", "plan"]


def labels(app: str, component: Component = "runtime", revision: str | None = None) -> dict[str, str]:
    """Return the labels of a child.

    Args:
        app: The application's name.
        component: What the child belongs to: the running application, or the finding of its plan.
        revision: The revision that the child is of; None for children that serve all revisions.
    """
    return {
        COMPONENT: component,
        "app.kubernetes.io/instance": app,
        "app.kubernetes.io/managed-by": MANAGER,
        "app.kubernetes.io/name": "millrace-app",
        APP: app,
        **({} if revision is None else {REVISION: revision}),
    }


def selector(app: str, component: Component = "runtime") -> dict[str, str]:
    """Return the labels by which an application's pods are selected, which never change."""
    return {COMPONENT: component, APP: app}


def owner_reference(app: str, uid: str) -> dict[str, Any]:
    """Return what makes tools show an object under its `StreamsApp`; nothing waits for the object's deletion."""
    return {
        "apiVersion": API_VERSION,
        "kind": "StreamsApp",
        "name": app,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
