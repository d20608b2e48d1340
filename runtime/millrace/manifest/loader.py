"""Reads manifests, and reports everything that is wrong with them at once.

Every problem names the field's path, the line, the rule and the value that breaks it; for an unknown field also the nearest
known one. `check` returns the problems as values, for callers other than the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ValidationError

from millrace.errors import ManifestError
from millrace.manifest.problems import Problem, problem, shown
from millrace.manifest.resource import API_VERSION, GROUP, Resource
from millrace.manifest.streamsapp import StreamsApp
from millrace.manifest.streamsbackfill import StreamsBackfill
from millrace.manifest.streamsreset import StreamsReset
from millrace.manifest.yaml_document import DocumentError, documents

KINDS: Final[Mapping[str, type[Resource]]] = {
    "StreamsApp": StreamsApp,
    "StreamsReset": StreamsReset,
    "StreamsBackfill": StreamsBackfill,
}
"""Every kind of the API group; a new one is registered here."""

_R = TypeVar("_R", bound=Resource)


def load(source: Path | str) -> StreamsApp:
    """Read the one `StreamsApp` of a file or a text; documents of other kinds are ignored.

    Args:
        source: A path, or the text of a manifest (a string that contains a line break is a text).

    Raises:
        ManifestError: The file cannot be read, has no StreamsApp or several, or breaks the schema; names every problem.
    """
    name, resources, others = _load(source)
    apps = [resource for resource in resources if isinstance(resource, StreamsApp)]
    if not apps:
        others += [f"{resource.kind} {resource.metadata.name}" for resource in resources]
        found_instead = f"; it has {', '.join(others)}" if others else ", it is empty"
        raise ManifestError(f"{name} holds no StreamsApp (apiVersion: {API_VERSION}, kind: StreamsApp){found_instead}")
    if len(apps) > 1:
        names = ", ".join(app.metadata.name for app in apps)
        raise ManifestError(f"{name} holds {len(apps)} StreamsApps ({names}) where one is expected: split the file")
    return apps[0]


def load_all(source: Path | str) -> list[Resource]:
    """Read all Millrace resources, at least one, of a file or a text.

    Raises:
        ManifestError: The file cannot be read, contains no resource, or one breaks its schema; names every problem.
    """
    name, resources, others = _load(source)
    if not resources:
        found_instead = f"; it has {', '.join(others)}" if others else ", it is empty"
        raise ManifestError(f"{name} holds no {' or '.join(KINDS)} (apiVersion: {API_VERSION}){found_instead}")
    return resources


def check(value: object, kind: type[_R]) -> tuple[_R | None, list[Problem]]:
    """Validate the data of a manifest and return the model, or None and the problems.

    Args:
        value: The manifest, as parsed from JSON or YAML.
        kind: The kind of resource it must be.
    """
    if not isinstance(value, Mapping):
        return None, [
            Problem((), "a manifest must be a mapping with apiVersion, kind, metadata and spec", shown(value))
        ]
    problems = []
    for name, wanted in (("apiVersion", API_VERSION), ("kind", kind.__name__)):
        if name not in value:
            problems.append(Problem((name,), f"is required: write `{name}: {wanted}`"))
        elif value[name] != wanted:
            what = "this version of Millrace reads" if name == "apiVersion" else "a manifest's kind is"
            problems.append(Problem((name,), f"must be `{wanted}`, which is what {what}", shown(value[name])))
    if problems:
        return None, problems
    try:
        return kind.model_validate(value), []
    except ValidationError as error:
        return None, [problem(item, kind) for item in error.errors()]


def _load(source: Path | str) -> tuple[str, list[Resource], list[str]]:
    """Return the source's name in messages, its resources, and the kinds of its other documents."""
    name, text = _read(source)
    resources: list[Resource] = []
    problems: list[Problem] = []
    others: list[str] = []
    try:
        for document in documents(text):
            value = document.value if isinstance(document.value, Mapping) else {}
            kind, group = value.get("kind"), str(value.get("apiVersion", GROUP)).partition("/")[0]
            near = (
                difflib.get_close_matches(kind.lower(), map(str.lower, KINDS), 1, 0.8) if isinstance(kind, str) else []
            )
            if isinstance(kind, str) and group != GROUP and not near:
                others.append(f"{kind} (line {document.line(())})")
                continue
            model = next((model for name, model in KINDS.items() if [name.lower()] == near), StreamsApp)
            resource, found = check(document.value, model)
            problems += [replace(item, line=document.line(item.path)) for item in found]
            resources += [resource] if resource else []
    except DocumentError as error:
        raise ManifestError(f"{name}, line {error.line}: {error}") from None
    if problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ManifestError("\n  ".join([f"{name} has {count}:", *map(str, problems)]))
    return name, resources, others


def _read(source: Path | str) -> tuple[str, str]:
    if isinstance(source, str) and "\n" in source:
        return "The manifest", source
    path = Path(source)
    try:
        return str(path), path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is not UTF-8 text: {error}") from None
    except OSError as error:
        raise ManifestError(f"Cannot read the manifest {path}: {error.strerror}") from None
