"""The table of wrong manifests: read for the tests here, and for those that apply each to a real API server (`e2e/`)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
GOOD: Final = HERE / "good"
_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Wrong:
    """One wrong manifest."""

    kind: str
    field: str
    """Where it is wrong, for example `spec/kafka/bootstrapServers/0`."""
    at: str
    """The field that the message names."""
    says: str
    """What the message says about it."""
    manifest: dict[str, Any]
    value: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.field}={self.value}"


def good(name: str) -> dict[str, dict[str, Any]]:
    """Return the good manifests of a file, by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((GOOD / f"{name}.yaml").read_text())}


def table() -> Iterator[Wrong]:
    """Yield every wrong manifest there is."""
    base = good("everything")
    for kind, entries in yaml.safe_load((HERE / "wrong_values.yaml").read_text()).items():
        for entry in entries:
            manifest = copy.deepcopy(base[kind])
            _put(manifest, entry["field"], entry.get("value", _NOTHING))
            for field, value in entry.get("also", {}).items():
                _put(manifest, field, value)
            yield Wrong(
                kind=kind,
                field=entry["field"],
                at=entry.get("at", entry["field"]),
                says=entry["says"],
                manifest=manifest,
                value=repr(entry["value"]) if "value" in entry else "missing",
            )


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a good manifest, which an API server admits or refuses."""

    kind: str
    field: str
    refused: str
    """What the message says; empty if the change is admitted."""
    manifest: dict[str, Any]
    value: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.field}={self.value}"


def changes() -> Iterator[Change]:
    """Yield changes whose rules are about before and after."""
    base = good("everything")
    for kind, entries in yaml.safe_load((HERE / "changes.yaml").read_text()).items():
        for entry in entries:
            manifest = copy.deepcopy(base[kind])
            _put(manifest, entry["field"], entry.get("value", _NOTHING))
            value = repr(entry["value"]) if "value" in entry else "missing"
            yield Change(kind, entry["field"], entry.get("refused", ""), manifest, value)


def _put(manifest: dict[str, Any], field: str, value: Any) -> None:
    *parents, last = field.split("/")
    node: Any = manifest
    for step in parents:
        node = node[int(step) if isinstance(node, list) else step]
    key: Any = int(last) if isinstance(node, list) else last
    if value is _NOTHING:
        del node[key]
    else:
        node[key] = value
