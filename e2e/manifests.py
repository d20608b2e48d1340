"""Renders the chart into `charts/kustomize/`, for installing without helm: `python -m e2e.manifests [--check]`.

Whatever only helm understands is left out: the pods of `helm test`, and the labels of objects managed by helm.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.cluster import tools

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "millrace-operator"
KUSTOMIZE: Final = ROOT / "charts" / "kustomize"
NAMESPACE: Final = "millrace"
KUBE_VERSION: Final = "1.34.0"

_OVERLAYS: Final[dict[str, dict[str, Any]]] = {
    "cluster-wide": {},
    "namespaced": {
        "watchNamespaces": [NAMESPACE],
        "rbac": {"readStorageClasses": False, "readNodes": False, "aggregate": False, "namespaceDeletion": False},
        "admissionPolicy": {"enabled": False},
    },
}
_HEADER: Final = "# Rendered from charts/millrace-operator by `make manifests`; changes made here are lost.\n"


def render(values: dict[str, Any], *, release: str = "millrace-operator", namespace: str = NAMESPACE) -> str:
    """Return the output of `helm template` for the chart.

    Args:
        values: values that differ from the defaults.
        release: the release's name.
        namespace: the release's namespace.

    Raises:
        RenderError: helm refuses the values.
    """
    command = [str(tools.path("helm")), "template", release, str(CHART), "--namespace", namespace]
    result = subprocess.run(
        [*command, "--kube-version", KUBE_VERSION, "--values", "-"],
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RenderError(result.stderr)
    return result.stdout


class RenderError(Exception):
    """Helm does not render the chart with these values."""


def files() -> dict[Path, str]:
    """Return the text of every rendered file by its path."""
    return {KUSTOMIZE / name / "operator.yaml": _plain(values) for name, values in _OVERLAYS.items()}


def _plain(values: dict[str, Any]) -> str:
    documents = yaml.safe_load_all(render({**values, "crds": {"install": False}}))
    objects = [item for item in documents if item and "helm.sh/hook" not in item["metadata"].get("annotations", {})]
    for item in objects:
        labels = item["metadata"]["labels"]
        del labels["helm.sh/chart"]
        labels["app.kubernetes.io/managed-by"] = "kustomize"
    return _HEADER + yaml.safe_dump_all(objects, sort_keys=False, width=120, explicit_start=True)


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or with `--check` only say whether they are up to date; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.manifests", description="Render charts/kustomize from the chart."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is not up to date")
    options = parser.parse_args(arguments)
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        sys.stdout.write(f"{'Not up to date' if options.check else 'Written'}: {path.relative_to(ROOT)}\n")
        if not options.check:
            path.write_text(text)
    return int(bool(stale) and options.check)


if __name__ == "__main__":
    sys.exit(main())
