"""The two ConfigMaps of a revision, with its manifest and its topology plan; and one that outlives them.

Those of a revision are immutable and named after it, so that a pod can never see a manifest other than the one it was started
with, and a rollback finds the old one unchanged. A changed manifest is another revision, so another name, so another pod
template: that is what makes pods roll.
"""

from __future__ import annotations

import json
from typing import Final

from millrace.manifest import API_VERSION
from millrace_operator.children import naming
from millrace_operator.children.naming import RETAINED_LABEL, Component, labels
from millrace_operator.model import AppRevision, Json, Object

MANIFEST_KEY: Final = "streamsapp.yaml"
PLAN_KEY: Final = "plan.json"
RETAINED_KEY: Final = "retained.json"


def revision_config_map(app: AppRevision, spec: Object) -> Json:
    """Return the ConfigMap with a revision's manifest, as JSON, which is YAML too.

    Args:
        app: The revision.
        spec: The part of the spec that pods depend on, in the manifest's own names. Without defaults, so that another version of
            Millrace in the image applies its own, and without what may change within a revision, because the ConfigMap cannot.
    """
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "StreamsApp",
        "metadata": {"name": app.name, "namespace": app.namespace},
        "spec": spec,
    }
    text = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False)
    return _config_map(app, naming.revision_config_map(app.name, app.revision), MANIFEST_KEY, text + "\n")


def plan_config_map(app: AppRevision, plan: str) -> Json:
    """Return the ConfigMap with a revision's topology plan.

    Args:
        app: The revision.
        plan: The plan's JSON, as `millrace plan --json` prints it.
    """
    return _config_map(app, naming.plan_config_map(app.name, app.revision), PLAN_KEY, plan, component="plan")


def retained_config_map(namespace: str, app: str, text: str) -> Json:
    """Return the ConfigMap with what the next application of this name needs to know about this one, apart from its plans.

    Args:
        namespace: The application's.
        app: The application's name.
        text: Its content, as JSON.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": naming.retained_config_map(app),
            "namespace": namespace,
            "labels": {**labels(app, "plan"), RETAINED_LABEL: "true"},
        },
        "data": {RETAINED_KEY: text},
    }


def _config_map(app: AppRevision, name: str, key: str, text: str, component: Component = "runtime") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": app.namespace, "labels": labels(app.name, component, app.revision)},
        "immutable": True,
        "data": {key: text},
    }
