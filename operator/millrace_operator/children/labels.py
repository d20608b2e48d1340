"""The labels of children: by them the operator finds its own, and users and tools find theirs.

Children carry **no owner references**. With one, Kubernetes' garbage collector would delete a child together with the
`StreamsApp`, which `deletionPolicy: Orphan` and retained storage must not allow, and it would do so in an order of its own. The
finalizer deletes instead what the policy says, found by `streams.millrace.dev/app`. The price: who takes the finalizer off by
force leaves the children behind, and deletes them with `kubectl delete all,cm,pvc -l streams.millrace.dev/app=NAME`.
"""

from __future__ import annotations

from typing import Final, Literal

from millrace.manifest import GROUP

MANAGER: Final = "millrace-operator"
APP: Final = f"{GROUP}/app"
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
