"""Kubernetes' *structural schemas*: the part of OpenAPI that a CRD may use, made from and checked against JSON schema.

Pydantic writes general JSON schema: `$ref`, a null alternative for optional fields, `const`, titles. The API server accepts
none of these. `structural` rewrites a schema without loss of meaning (a null where a field may be left out is dropped by the
API server, as if it were left out); `violations` is the API server's own list of demands, so that a schema it would refuse
is found by a test and not by an installation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from millrace.manifest.rules import VALIDATIONS

Schema = dict[str, Any]

_TYPES = frozenset({"array", "boolean", "integer", "number", "object", "string"})
_FORMATS = frozenset({"byte", "date", "date-time", "double", "duration", "float", "int32", "int64", "password", "uri"})
_ALLOWED = frozenset(
    {
        "additionalProperties", "anyOf", "allOf", "oneOf", "not", "default", "description", "enum", "example", "externalDocs",
        "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties", "maximum",
        "minItems", "minLength", "minProperties", "minimum", "multipleOf", "nullable", "pattern", "properties", "required",
        "title", "type", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
    }
)  # fmt: skip
_EMPTY: tuple[object, ...] = (None, {}, [])
_JUNCTORS = ("anyOf", "allOf", "oneOf")
_NOT_IN_ALTERNATIVES = frozenset({"additionalProperties", "default", "description", "nullable", "title", "type"})
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def structural(node: Schema, definitions: Mapping[str, Schema] | None = None, seen: tuple[str, ...] = ()) -> Schema:
    """Rewrite a JSON schema made by pydantic as a structural schema with the same meaning.

    Args:
        node: The result of `model_json_schema()`, or a part of it; it is not changed.
        definitions: The targets of its references; its own definitions if not given.
        seen: The models that contain this part.

    Raises:
        ValueError: It uses something that has no structural form, such as a union of objects or a recursive model.
    """
    if definitions is None:
        definitions = node.get("$defs", {})
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in seen:
            raise ValueError(f"Model {name} contains itself, which a structural schema cannot express")
        own = {key: value for key, value in node.items() if key != "$ref"}
        return structural(_with(definitions[name], own), definitions, (*seen, name))
    if {"type": "null"} in node.get("anyOf", ()):
        alternatives = [item for item in node["anyOf"] if item != {"type": "null"}]
        if len(alternatives) > 1:
            raise ValueError(f"A union has no structural form: {alternatives}")
        own = {key: value for key, value in node.items() if key != "anyOf" and value is not None}
        return structural(_with(alternatives[0], own), definitions, seen)
    entries = (
        _entry(key, value, node, lambda part: structural(part, definitions, seen)) for key, value in node.items()
    )
    return dict(entry for entry in entries if entry)


def _with(schema: Schema, more: Schema) -> Schema:
    """Return a schema merged with the keywords at its place of use; rules add up."""
    rules = [*schema.get(VALIDATIONS, ()), *more.get(VALIDATIONS, ())]
    return schema | more | ({VALIDATIONS: rules} if rules else {})


def _entry(key: str, value: Any, node: Schema, rewrite: Callable[[Schema], Schema]) -> tuple[str, object] | None:
    if key in {"$defs", "title"} or (key == "default" and _without_empty(value) in _EMPTY):
        return None
    if key in {"maxLength", "minLength"} and node.get("type") == "object":
        return key.replace("Length", "Properties"), value
    match key:
        case "description":
            return key, " ".join(value.split())
        case "default":
            return key, _without_empty(value)
        case "const":
            return "enum", [value]
        case "properties":
            return key, {name: rewrite(item) for name, item in value.items()}
        case "items":
            return key, rewrite(value)
        case "additionalProperties":
            return (key, rewrite(value)) if isinstance(value, dict) else None
    return key, value


def _without_empty(value: object) -> object:
    """Leave out empty keywords, so that the API server does not write them into every resource."""
    if isinstance(value, dict):
        parts = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in parts.items() if item not in _EMPTY}
    return value


def violations(schema: Schema, path: str = "") -> Iterator[str]:
    """Yield every reason for which the API server would refuse a schema as not structural; none if it is.

    Args:
        schema: The schema of a resource, or the part of it at `path`.
        path: Where it is, for the messages; empty for the root.
    """
    where = path or "the root"
    for key in schema.keys() - _ALLOWED:
        yield f"{where}: `{key}` is not allowed"
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if not isinstance(schema.get(key, False), bool):
            yield f"{where}: `{key}` is a boolean here, which goes with `{key[9:].lower()}`"
    if schema.get("format", "int32") not in _FORMATS:
        yield f"{where}: the API server does not know the format {schema['format']!r}"
    if "default" in schema and schema["default"] is None and not schema.get("nullable"):
        yield f"{where}: the default is null, which the schema does not admit"
    if not path and schema.get("type") != "object":
        yield f"{where}: must be an object"
    if not path and schema.get("properties", {}).get("metadata", {}).keys() - {"type"}:
        yield f"{where}: metadata must be left to the API server"
    yield from _violations_of_type(schema, where)
    yield from _violations_of_parts(schema, path)


def _violations_of_type(schema: Schema, where: str) -> Iterator[str]:
    preserves = schema.get("x-kubernetes-preserve-unknown-fields") is True
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string") is True:
        if kind or schema.get("anyOf") != _INT_OR_STRING:
            yield f"{where}: an int-or-string has no type but `anyOf` integer and string"
        return
    if kind not in _TYPES and not (preserves and kind is None):
        yield f"{where}: the type is {kind!r}"
    for key in _JUNCTORS:
        for index, part in enumerate(schema.get(key, ())):
            for forbidden in part.keys() & _NOT_IN_ALTERNATIVES:
                yield f"{where}.{key}[{index}]: `{forbidden}` is not allowed inside anyOf, allOf and oneOf"


def _violations_of_parts(schema: Schema, path: str) -> Iterator[str]:
    where = path or "the root"
    properties, rest = schema.get("properties"), schema.get("additionalProperties")
    if properties is not None and rest is not None:
        yield f"{where}: `properties` and `additionalProperties` exclude each other"
    if rest is not None and not isinstance(rest, dict):
        yield f"{where}: `additionalProperties` must be a schema"
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        yield f"{where}: an array needs one schema for its `items`"
    for name in set(schema.get("required", ())) - (properties or {}).keys():
        yield f"{where}: required field {name!r} is not described"
    for name, item in (properties or {}).items():
        yield from violations(item, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from violations(schema[key], f"{path}[{'' if key == 'items' else '*'}]")
