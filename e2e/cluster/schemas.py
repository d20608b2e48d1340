"""JSON schemas of Kubernetes' own resources in kubeconform's layout, made from the API's own description, without a network.

They are strict: a field that Kubernetes does not know is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DEFINITIONS = "_definitions.json"
_INT_OR_STRING = {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}


def write_schemas(swagger: Path, directory: Path) -> None:
    """Write one schema per kind and version, and one file with the definitions they share.

    Args:
        swagger: Kubernetes' `swagger.json`.
        directory: The directory to create, for `kubeconform -schema-location`.
    """
    directory.mkdir(parents=True)
    originals: dict[str, Any] = json.loads(swagger.read_text())["definitions"]
    definitions = {name: _opaque(name) or _translate(schema) for name, schema in originals.items()}
    (directory / _DEFINITIONS).write_text(json.dumps({"definitions": definitions}))
    for name, schema in originals.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            group, version = kind["group"], kind["version"]
            suffix = "-".join(part for part in (group.partition(".")[0], version) if part)
            strict = dict(definitions[name])
            strict["properties"] = {
                **strict.get("properties", {}),
                "kind": {"type": "string", "enum": [kind["kind"]]},
                "apiVersion": {"type": "string", "enum": [f"{group}/{version}" if group else version]},
            }
            (directory / f"{kind['kind'].lower()}-{suffix}.json").write_text(json.dumps(strict))


def _opaque(name: str) -> dict[str, Any] | None:
    """Return the schema of a type that is defined by its code, not by its schema."""
    if name.endswith(".JSONSchemaProps"):
        return {"type": "object"}
    if name.endswith("resource.Quantity"):
        return {"oneOf": [{"type": "string"}, {"type": "number"}]}
    return None


def _translate(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_translate(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return _INT_OR_STRING
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            result[key] = {name: _translate(item) for name, item in value.items()}
        elif key == "$ref":
            result[key] = value.replace("#/definitions/", f"{_DEFINITIONS}#/definitions/")
        elif key != "format" and not key.startswith("x-kubernetes"):
            result[key] = _translate(value)
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        result.setdefault("additionalProperties", False)
    return result
