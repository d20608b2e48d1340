"""The ServiceAccount of an application's pods: an identity of its own, so that what a cluster grants to `default` is not theirs.

Nothing is granted to it, and neither it nor the pods ask for a token: a stream application has no business with the API server.
"""

from __future__ import annotations

from typing import Any

from millrace_operator.children import names
from millrace_operator.children.app import AppRevision
from millrace_operator.children.labels import labels


def service_account(app: AppRevision) -> dict[str, Any] | None:
    """Return the ServiceAccount; None if the spec names one of the user's."""
    if app.spec.service_account_name is not None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": names.service_account(app.name), "namespace": app.namespace, "labels": labels(app.name)},
        "automountServiceAccountToken": False,
    }
