"""The kustomizations refer to existing files and cover the CRDs; `make e2e` renders them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUSTOMIZATIONS = [ROOT / "crds", *sorted(path.parent for path in ROOT.glob("charts/kustomize/*/kustomization.yaml"))]


def _file(folder: Path) -> Path:
    named = folder / "Kustomization"
    return named if named.exists() else folder / "kustomization.yaml"


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda folder: folder.name)
def test_resources_exist(folder: Path) -> None:
    """The files that a kustomization lists exist, in its own folder, because kubectl refuses others."""
    for resource in yaml.safe_load(_file(folder).read_text())["resources"]:
        path = folder / resource
        assert _file(path).is_file() if path.is_dir() else path.is_file()
        assert path.is_dir() or "/" not in resource


def test_every_crd_is_listed() -> None:
    """`kubectl apply -k crds/` installs all of them."""
    listed = yaml.safe_load((ROOT / "crds/Kustomization").read_text())["resources"]
    assert sorted(listed) == sorted(path.name for path in (ROOT / "crds").glob("streams*.yaml"))


def test_namespaced_overlay_needs_no_cluster_permissions() -> None:
    """Someone with permissions in one namespace can apply it: every object is in it, and no rule goes further."""
    objects = list(yaml.safe_load_all((ROOT / "charts/kustomize/namespaced/operator.yaml").read_text()))
    assert objects
    assert {item["metadata"].get("namespace") for item in objects} == {"millrace"}
    assert not {item["kind"] for item in objects} & {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
