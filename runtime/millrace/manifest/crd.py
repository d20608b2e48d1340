"""Generates `crds/` from the models: `python -m millrace.manifest.crd [--check] [DIRECTORY]`.

The files are installed in a cluster; a test keeps them in step with the models. In addition to the schema, with the `rules`, they
contain the columns that `kubectl` shows and the `scale` and `status` subresources.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from millrace.manifest.fields import RESOURCE_NAME_LENGTH, RESOURCE_NAME_PATTERN
from millrace.manifest.resource import GROUP, VERSION, Resource
from millrace.manifest.rules import with_rules
from millrace.manifest.streamsapp import StreamsApp
from millrace.manifest.streamsapp_status import UNSEEN_GENERATION
from millrace.manifest.streamsbackfill import StreamsBackfill
from millrace.manifest.streamsreset import StreamsReset
from millrace.manifest.structural_schema import structural, violations

_HEADER = "# Generated from the models in millrace.manifest by `make crds`; changes made here are lost.\n"

_NAME_CEL = (
    f"size(self.metadata.name) <= {RESOURCE_NAME_LENGTH} && self.metadata.name.matches(r'{RESOURCE_NAME_PATTERN}')"
)
_NAME_RULE = (
    f"metadata.name must have at most {RESOURCE_NAME_LENGTH} characters (lower-case letters, digits and `-`), start with a "
    "letter and not end with `-`"
)

Column = tuple[str, str, str, int, str]
"""Name, type, path, priority (0 is always shown) and description."""

_OF_APP: Column = ("App", "string", ".spec.appRef.name", 0, "The application.")
_PHASE: Column = ("Phase", "string", ".status.phase", 0, "Its progress.")
_MESSAGE: Column = ("Message", "string", ".status.message", 1, "Why, and what to do.")
_AGE: Column = ("Age", "date", ".metadata.creationTimestamp", 0, "When it was created.")
_APP_COLUMNS: tuple[Column, ...] = (
    ("Ready", "string", ".status.ready", 0, "How many replicas run all their tasks, of the desired ones."),
    ("State", "string", ".status.lifecycleState", 0, "The state of the application."),
    ("Lag", "integer", ".status.lag.total", 0, "How many records it is behind."),
    ("Tasks", "integer", ".status.tasks.active", 1, "How many tasks are active."),
    ("Standbys", "integer", ".status.tasks.standby", 1, "How many standby copies are kept up to date."),
    ("Guarantee", "string", ".spec.processing.guarantee", 1, "The processing guarantee."),
    ("Application-Id", "string", ".spec.applicationId", 1, "Kafka's application.id."),
    ("Revision", "string", ".status.currentRevision", 1, "The revision that the pods are being moved to."),
    ("Image", "string", ".spec.image", 1, "The container image."),
    (
        "Stalled",
        "string",
        '.status.conditions[?(@.type=="Stalled")].reason',
        1,
        "Why the operator cannot make progress.",
    ),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].message', 1, "Why it is or is not ready."),
    _AGE,
)
_RESET_COLUMNS: tuple[Column, ...] = (
    _OF_APP,
    _PHASE,
    ("Dry-Run", "boolean", ".spec.dryRun", 0, "Whether it only reports what it would do."),
    ("To", "string", ".spec.toOffset", 1, "Where in its input the application starts again."),
    _MESSAGE,
    _AGE,
)
_BACKFILL_COLUMNS: tuple[Column, ...] = (
    _OF_APP,
    _PHASE,
    ("Stages", "string", ".status.progress", 0, "How many stages of the job are done."),
    ("Attempt", "integer", ".status.attempt", 1, "How many times it was tried."),
    ("Spark", "string", ".status.spark.name", 1, "The SparkApplication."),
    ("Sink", "string", ".spec.sink", 1, "Where results go."),
    _MESSAGE,
    _AGE,
)


_SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
_KINDS: dict[type[Resource], tuple[str, tuple[Column, ...], dict[str, object]]] = {
    StreamsApp: ("sapp", _APP_COLUMNS, {"status": {}, "scale": _SCALE}),
    StreamsReset: ("sreset", _RESET_COLUMNS, {"status": {}}),
    StreamsBackfill: ("sbackfill", _BACKFILL_COLUMNS, {"status": {}}),
}
"""The short name, columns and subresources of each kind."""


def crd_of(model: type[Resource]) -> dict[str, object]:
    """Return the CustomResourceDefinition of a kind."""
    short, columns, subresources = _KINDS[model]
    kind = model.__name__
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{model.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "millrace", "app.kubernetes.io/component": "crd"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": model.plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["all", "millrace"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": text}
                        for name, kind, path, priority, text in columns
                    ],
                    "subresources": subresources,
                    "schema": {"openAPIV3Schema": schema_of(model)},
                }
            ],
        },
    }


def schema_of(model: type[Resource]) -> dict[str, object]:
    """Return the structural schema of a resource.

    Raises:
        ValueError: The API server would not accept it.
    """
    schema = structural(model.model_json_schema(by_alias=True))
    properties = schema["properties"]
    for name in ("apiVersion", "kind"):
        properties[name] = {"type": "string", "description": properties[name]["description"]}
    properties["metadata"] = {"type": "object"}
    # Tools that wait for a resource consider one without a status finished; this status says that nobody has seen it yet.
    properties["status"]["default"] = {"observedGeneration": UNSEEN_GENERATION}
    schema["required"] = ["spec"]
    schema = with_rules(schema, [{"rule": _NAME_CEL, "message": _NAME_RULE}])
    problems = list(violations(schema))
    if problems:
        raise ValueError(f"The schema is not structural: {'; '.join(problems)}")
    return schema


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key and never writes an alias."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, False)

    def ignore_aliases(self, _data: object) -> bool:
        return True


def files() -> dict[str, str]:
    """Return the text of every generated file by its name in `crds/`."""
    return {
        f"{kind.__name__.lower()}.yaml": _HEADER
        + yaml.dump(crd_of(kind), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
        for kind in _KINDS
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or with `--check` only report whether they are up to date; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m millrace.manifest.crd", description="Write crds/ from the models.")
    parser.add_argument("directory", nargs="?", type=Path, default=Path("crds"), help="where to write (default: crds)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is not up to date")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in files().items():
        path = options.directory / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path))
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        sys.stdout.write(f"{'Not up to date: ' if options.check else 'Written: '}{', '.join(stale)}\n")
    return int(bool(stale) and options.check)


if __name__ == "__main__":
    sys.exit(main())
