"""The volumes of pods and where they are mounted: the manifest, secrets, state, temporary files, and the user's own.

The annotation by which a pod is told to drain is a file, too. The kubelet rewrites it as soon as the pod is annotated, so only
whoever may write pods can have one drained, and a pod needs no port for it that others could reach.

The root filesystem is read-only, so `/tmp` is an emptyDir, unless the user mounts something there. Folders are mounted whole,
never by subPath: only so do changes of a Secret arrive.
"""

from __future__ import annotations

from typing import Any, Final

from millrace.manifest.settings import SECRETS_DIR
from millrace_operator.children import names, paths
from millrace_operator.children.app import AppRevision
from millrace_operator.children.passed_on import all_as_kept
from millrace_operator.children.secrets import FILE_MODE, secret_sources
from millrace_operator.model import DRAIN

Volume = dict[str, Any]
Mount = dict[str, Any]

_DRAIN_VOLUME: Final = "millrace-drain"
_WITHOUT_SECRETS: Final = ("configMap", "downwardAPI", "emptyDir")
"""Kinds of volumes that can carry no secret and belong to one pod only."""


def pod_volumes(app: AppRevision) -> list[Volume]:
    """Return the volumes of a pod; that of its state comes from the claim template."""
    sources = secret_sources(app)
    secrets = [{"name": "secrets", "projected": {"defaultMode": FILE_MODE, "sources": sources}}] if sources else []
    return [
        _manifest(app),
        _drain(),
        *secrets,
        {"name": "tmp", "emptyDir": {}},
        *all_as_kept(app.spec.pod_template.volumes),
    ]


def pod_mounts(app: AppRevision) -> list[Mount]:
    """Return where the program's container finds its volumes."""
    secrets = [{"name": "secrets", "mountPath": str(SECRETS_DIR), "readOnly": True}] if secret_sources(app) else []
    users = all_as_kept(app.spec.pod_template.volume_mounts)
    return [
        _manifest_mount(),
        {"name": _DRAIN_VOLUME, "mountPath": paths.DRAIN, "readOnly": True},
        *secrets,
        {"name": names.STATE_VOLUME, "mountPath": paths.STATE},
        *_temporary(users),
        *users,
    ]


def plan_volumes(app: AppRevision) -> list[Volume]:
    """Return the volumes of the plan Job's pod: of the user's only those that hold no secrets and no state."""
    return [_manifest(app), {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}, *_harmless(app)]


def plan_mounts(app: AppRevision) -> list[Mount]:
    """Return where the plan Job's container finds its volumes."""
    there = {volume["name"] for volume in _harmless(app)}
    users = [mount for mount in all_as_kept(app.spec.pod_template.volume_mounts) if mount["name"] in there]
    return [_manifest_mount(), *_temporary(users), *users]


def _manifest(app: AppRevision) -> Volume:
    name = names.revision_config_map(app.name, app.revision)
    return {"name": "app", "configMap": {"name": name, "defaultMode": 0o444}}


def _drain() -> Volume:
    folder, _, file = paths.DRAIN_FILE.rpartition("/")
    assert folder == paths.DRAIN
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{DRAIN}']"}
    return {
        "name": _DRAIN_VOLUME,
        "downwardAPI": {"defaultMode": 0o444, "items": [{"fieldRef": field, "path": file}]},
    }


def _manifest_mount() -> Mount:
    return {"name": "app", "mountPath": paths.APP, "readOnly": True}


def _temporary(users: list[Mount]) -> list[Mount]:
    if any(mount["mountPath"].rstrip("/") == paths.TEMPORARY for mount in users):
        return []
    return [{"name": "tmp", "mountPath": paths.TEMPORARY}]


def _harmless(app: AppRevision) -> list[Volume]:
    volumes = all_as_kept(app.spec.pod_template.volumes)
    return [volume for volume in volumes if any(kind in volume for kind in _WITHOUT_SECRETS)]
