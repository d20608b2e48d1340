"""Who owns an object: the operator writes and deletes only its own, whatever names or labels other objects have.

An object is an application's own if it has a name that the operator gives, the operator's labels, and the uid of the
`StreamsApp`. So is one without a uid: it was written by an operator that did not know this label, or handed over by an earlier
`StreamsApp` of that name. So is the plan of a revision that has run, with any uid: a backup restores it with an old one, and it
describes state that still exists.
"""

from __future__ import annotations

from typing import Final

from millrace_operator.children import naming
from millrace_operator.children.naming import APP_LABEL, APP_UID_LABEL, MANAGER, REVISION_LABEL, STARTED_ANNOTATION
from millrace_operator.model import Key, Object, labels_of

_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_KINDS: Final = "sts,svc,sa,cm,pdb,netpol"


def is_own(key: Key, item: Object, app: str, uid: str) -> bool:
    """Return whether an object of a kind that the operator applies is an application's own.

    Args:
        key: Which object it is.
        item: The object as the API server has it.
        app: The application's name.
        uid: The uid of its `StreamsApp`.
    """
    labels = labels_of(item)
    if labels.get(APP_LABEL) != app or labels.get(_MANAGED_BY) != MANAGER:
        return False
    revision = labels.get(REVISION_LABEL)
    if not naming.is_child(app, key.kind, key.name, revision):
        return False
    is_plan = key == Key("ConfigMap", naming.plan_config_map(app, revision or ""))
    describes_state = is_plan and STARTED_ANNOTATION in (item["metadata"].get("annotations") or {})
    return labels.get(APP_UID_LABEL, uid) == uid or describes_state


def conflict_message(item: Object, app: str) -> str:
    """Return a description of somebody else's object for the application's user, with what to do about it."""
    key, labels = Key.of(item), labels_of(item)
    if labels.get(APP_LABEL) == app and labels.get(_MANAGED_BY) == MANAGER and APP_UID_LABEL in labels:
        # kubectl knows PodMonitors only where they are installed.
        kinds = "podmonitor" if key.kind == "PodMonitor" else _KINDS
        return (
            f"{key.kind} {key.name} belongs to another StreamsApp {app} (uid {labels[APP_UID_LABEL]}), as after a restored "
            f"backup. It is left alone. Delete it, or hand over all of them: kubectl label {kinds} "
            f"-l {APP_LABEL}={app} {APP_UID_LABEL}-"
        )
    return (
        f"{key.kind} {key.name} exists and does not belong to this StreamsApp. It is left alone. Delete it, or give the "
        "StreamsApp another name."
    )


def controller_of(item: Object) -> Object | None:
    """Return the owner reference to an object's controller; None if there is none."""
    references = item["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def is_own_pod(item: Object, app: str, stateful_set: Object | None, others: str | None) -> bool:
    """Return whether a pod with the application's labels and name is its own.

    A pod without a controller is: it was left behind when its StatefulSet was deleted with --cascade=orphan. So is one of a
    StatefulSet of that name that no longer exists, until garbage collection removes it.

    Args:
        item: The pod.
        app: The application's name.
        stateful_set: The application's own StatefulSet.
        others: The uid of somebody else's StatefulSet of the name, if one is known.
    """
    controller = controller_of(item)
    if controller is None or (stateful_set is not None and controller["uid"] == stateful_set["metadata"]["uid"]):
        return True
    by_name = (controller.get("kind"), controller.get("name")) == ("StatefulSet", app)
    return by_name and controller["uid"] != others
