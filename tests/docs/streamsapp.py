"""Generates `docs/streamsapp.md`, the manifest reference, from the models: `python -m tests.docs.streamsapp`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

from tests.docs.inventory import ROOT
from tests.manifest import wrong

from millrace.manifest import KINDS
from millrace.manifest.crd import schema_of
from millrace.manifest.fields import DURATION_PATTERN, OBJECT_NAME_PATTERN, QUANTITY_PATTERN
from millrace.manifest.rules import VALIDATIONS

PAGE: Final = ROOT / "docs" / "streamsapp.md"

_HEAD: Final = """# Manifests

Every field of a `StreamsApp`, a `StreamsReset` and a `StreamsBackfill`. This page is generated from the models by
`python -m tests.docs.streamsapp`; tests keep it up to date and try an invalid value for every field. `kubectl explain
streamsapp.spec` shows the same.

* `millrace dev up`, `kubectl apply` and the operator validate the whole manifest, by the same rules, before they do anything. An
  unknown field is an error.
* Durations are numbers with a unit, such as `100ms`, `30s`, `1m30s` or `2h`. Quantities are Kubernetes' own, such as `500m` or
  `10Gi`. Object names consist of lower-case letters, digits, `-` and `.`
* Secrets, ConfigMaps and applications are always in the resource's own namespace. A manifest refers to Secrets by name and never
  contains their values: pods get them as files, which are updated when the Secret changes.
* YAML reads `Off`, `on`, `yes` and `no` as booleans: quote them if you mean a string.
"""

_SAMPLES: Final = {
    "StreamsApp": "The smallest possible one:",
    "StreamsReset": "It runs once: applying the same manifest again does nothing. For another reset, create another resource.",
    "StreamsBackfill": "It runs once, like a StreamsReset. The smallest possible one computes the whole history in Kafka:",
}
_TYPES: Final = {
    DURATION_PATTERN: "duration",
    QUANTITY_PATTERN: "quantity",
    OBJECT_NAME_PATTERN: "name",
}


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    for kind, model in KINDS.items():
        schema = schema_of(model)
        parts.append(f"## {kind}\n\n{schema['description']} {_SAMPLES[kind]}\n")
        parts.append(f"```yaml\n{_sample(kind)}```\n")
        spec = schema["properties"]["spec"]
        parts += [_section(kind, path, node) for path, node in _mappings(spec, "spec")]
    return "\n".join(parts).rstrip() + "\n"


def _sample(kind: str) -> str:
    texts = (wrong.GOOD / "minimal.yaml").read_text().split("---\n")
    text = next(text for text in texts if f"kind: {kind}\n" in text)
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def _mappings(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every mapping that has fields, outer ones first."""
    yield path, schema
    for name, item in schema["properties"].items():
        inner = item.get("items", item)
        if inner.get("properties"):
            yield from _mappings(inner, f"{path}.{name}" + ("[]" if "items" in item else ""))


def _section(kind: str, path: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        _row(name, item, _title(kind, path), required=name in required) for name, item in schema["properties"].items()
    ]
    passes_on = schema.get("x-kubernetes-preserve-unknown-fields")
    passed_on = ["| … | | | all other fields of the Kubernetes type |"] if passes_on else []
    table = "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows, *passed_on])
    rules = "\n".join(f"* {rule}" for rule in _rules(schema))
    return "\n\n".join(filter(None, [f"### {_title(kind, path)}", table, rules])) + "\n"


def _title(kind: str, path: str) -> str:
    return path if kind == "StreamsApp" else f"{kind} {path}"


def _rules(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the rules for the fields of a mapping, apart from their types."""
    yield from (rule["message"] for rule in schema.get(VALIDATIONS, ()))
    for name, item in schema["properties"].items():
        known = item.get("pattern") in _TYPES
        for rule in () if item.get("properties") else item.get(VALIDATIONS, ()):
            if known and item["pattern"] in rule["rule"]:
                continue
            yield f"{name} {rule['message']}"


def _row(name: str, schema: dict[str, Any], title: str, *, required: bool) -> str:
    default = "required" if required else _default(schema)
    meaning = _escaped(schema.get("description", ""))
    if schema.get("items", schema).get("properties"):
        title += f".{name}" + ("[]" if "items" in schema else "")
        meaning += f" [More](#{re.sub(r'[^a-z ]', '', title.lower()).replace(' ', '-')})"
    return f"| `{name}` | {_escaped(_type(schema))} | {default} | {meaning} |"


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("pattern") in _TYPES:
        return _TYPES[schema["pattern"]]
    if "x-kubernetes-int-or-string" in schema:
        return "integer or string"
    kind = schema.get("type", "anything")
    if kind == "array":
        inner = schema["items"]
        return f"list of {'mapping' if inner.get('type') == 'object' else inner['type']}s"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"mapping to {_type(values)}" if isinstance(values, dict) else "mapping"
    return kind + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None and high < 2**31 - 1:
        return f", {low} to {high}"
    return "" if low is None else f", at least {low}"


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    if value is None or isinstance(value, dict):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write the page."""
    PAGE.write_text(render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
