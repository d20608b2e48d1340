"""The table of wrong manifests: read by the tests here, and by those that send each to a real API server (`e2e/`)."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
GOOD: Final = HERE / "good"
OTHER_WAYS: Final = ("oauth", "cloud", "binding")
"""Good manifests with fields that the fullest one cannot have at the same time."""
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
    """What the message says about the field."""
    manifest: dict[str, Any]
    value: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.field}={self.value}"


def good(name: str) -> dict[str, dict[str, Any]]:
    """Return the good manifests in a file by kind, as copies."""
    return copy.deepcopy(_good(name))


@functools.cache
def _good(name: str) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all((GOOD / f"{name}.yaml").read_text())}


def table() -> Iterator[Wrong]:
    """Yield every wrong manifest."""
    base = good("everything")
    for kind, entries in yaml.safe_load((HERE / "wrong_values.yaml").read_text()).items():
        for entry in entries:
            manifest = copy.deepcopy(base[kind])
            for field, value in entry.get("also", {}).items():
                _put(manifest, field, value)
            _put(manifest, entry["field"], entry.get("value", _NOTHING))
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
    """A change to a good manifest, which an API server accepts or refuses."""

    kind: str
    field: str
    refused: str
    """What the message says; empty if the change is accepted."""
    manifest: dict[str, Any]
    value: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.field}={self.value}"


def changes() -> Iterator[Change]:
    """Yield changes that test rules about the old and the new value."""
    base = good("everything")
    for kind, entries in yaml.safe_load((HERE / "changes.yaml").read_text()).items():
        for entry in entries:
            manifest = copy.deepcopy(base[kind])
            _put(manifest, entry["field"], entry.get("value", _NOTHING))
            value = repr(entry["value"]) if "value" in entry else "missing"
            yield Change(kind, entry["field"], entry.get("refused", ""), manifest, value)


def places() -> list[tuple[str, str]]:
    """Return the kind and path of everything in the fullest good manifests."""

    def inside(value: Any, path: str) -> Iterator[str]:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            yield f"{path}{key}"
            yield from inside(item, f"{path}{key}/")

    return [(kind, path) for kind, manifest in good("everything").items() for path in inside(manifest, "")]


def standing_at(kind: str, field: str) -> Any:
    """Return the value that the fullest good manifest has in one place."""
    node: Any = good("everything")[kind]
    for step in _steps(node, field):
        node = node[step]
    return node


def altered(kind: str, field: str, value: Any) -> dict[str, Any]:
    """Return the fullest good manifest with one value replaced."""
    manifest = good("everything")[kind]
    _put(manifest, field, value)
    return manifest


def _steps(node: Any, field: str) -> Iterator[Any]:
    """Yield the keys and indices in a path; keys may contain slashes."""
    while field:
        if isinstance(node, list):
            step, _, field = field.partition("/")
            key: Any = int(step)
        else:
            known = [key for key in node if field == key or field.startswith(f"{key}/")]
            key = max(known, key=len, default=field)
            field = field[len(key) + 1 :]
        yield key
        if field:
            node = node[key]


def _put(manifest: dict[str, Any], field: str, value: Any) -> None:
    *parents, last = _steps(manifest, field)
    node: Any = manifest
    for step in parents:
        node = node[step]
    if value is _NOTHING:
        del node[last]
    else:
        node[last] = value
