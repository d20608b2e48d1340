"""The files in `crds/` match the models, and the API server accepts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from millrace.manifest import StreamsApp, crd
from millrace.manifest.fields import DURATION_PATTERN
from millrace.manifest.kafka import OWNED_SETTINGS
from millrace.manifest.structural_schema import structural, violations

CRDS = Path(__file__).parents[2] / "crds"


@pytest.fixture(scope="module")
def version():
    """Return the one version of the CRD."""
    return crd.crd_of(StreamsApp)["spec"]["versions"][0]


@pytest.fixture(scope="module")
def spec(version):
    """Return the schemas of the fields of the spec."""
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def test_files_and_models_agree():
    """`crds/` is generated from the models; if this fails, run `make crds`."""
    assert {path.name: path.read_text() for path in CRDS.glob("streams*.yaml")} == crd.files()


def test_check_reports_stale_files(tmp_path, capsys):
    """`--check` fails on a missing or changed file and writes nothing; without it the file is written."""
    assert crd.main([str(tmp_path), "--check"]) == 1
    assert "Not up to date" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert crd.main([str(tmp_path)]) == 0
    assert crd.main([str(tmp_path), "--check"]) == 0
    assert yaml.safe_load((tmp_path / "streamsapp.yaml").read_text()) == crd.crd_of(StreamsApp)


def test_schema_is_structural(version):
    """The schema breaks none of the API server's rules for structural schemas."""
    assert list(violations(version["schema"]["openAPIV3Schema"])) == []


def test_every_field_has_a_description(version):
    """`kubectl explain` has a sentence for every field."""

    def silent(schema, path):
        for name, item in schema.get("properties", {}).items():
            yield from [] if item.get("description") or path + name == "metadata" else [f"{path}.{name}"]
            yield from silent(item, f"{path}.{name}")
            yield from silent(item.get("items", {}), f"{path}.{name}[]")

    assert list(silent(version["schema"]["openAPIV3Schema"], "")) == []


def test_schema_contains_the_rules(spec):
    """The schema has the bounds, patterns, enums, defaults, formats and nullability of the models."""
    assert spec["replicas"] == {
        "default": 1, "description": "How many instances run. Instances beyond the number of tasks are idle.", "format": "int32",
        "maximum": 10_000, "minimum": 0, "type": "integer",
    }  # fmt: skip
    assert spec["processing"]["properties"]["guarantee"]["enum"] == ["at_least_once", "exactly_once_v2"]
    assert spec["processing"]["default"]["guarantee"] == "at_least_once"
    assert spec["processing"]["properties"]["commitInterval"]["pattern"] == DURATION_PATTERN
    assert spec["storage"]["properties"]["size"]["x-kubernetes-int-or-string"] is True
    assert spec["app"]["properties"]["config"]["x-kubernetes-preserve-unknown-fields"] is True
    assert spec["kafka"]["properties"]["config"]["maxProperties"] == 256
    assert "nullable" not in str(spec), "a null for a field that may be left out is dropped by the API server"


def test_rules_in_cel(version, spec):
    """What a schema cannot express is a CEL rule with a message: immutability, the entrypoint, settings owned by fields."""

    def rules(schema: dict) -> dict[str, str]:
        return {rule["rule"]: rule["message"] for rule in schema["x-kubernetes-validations"]}

    assert rules(spec["applicationId"])["self == oldSelf"].startswith("is immutable")
    assert "volumes can only grow" in str(rules(spec["storage"]).values())
    entrypoint, message = rules(spec["app"]["properties"]["entrypoint"]).popitem()
    pattern = re.fullmatch(r"self\.matches\(r'(.*)'\)", entrypoint)
    assert pattern
    assert "package.module:callable" in message
    assert re.match(pattern[1], "package.module:callable")
    assert not re.match(pattern[1], "module.py")
    owned = spec["kafka"]["properties"]["config"]["x-kubernetes-validations"][0]
    assert all(f"'{key}'" in owned["rule"] for key in OWNED_SETTINGS)
    assert all(owner in owned["message"] for owner in OWNED_SETTINGS.values())
    assert (
        "size(self.metadata.name) <= 52" in version["schema"]["openAPIV3Schema"]["x-kubernetes-validations"][0]["rule"]
    )


def test_rules_of_a_field_and_of_its_use_add_up():
    """A reference to a model keeps the model's rules in addition to those of the referring field."""
    model = {"type": "object", "properties": {}, "x-kubernetes-validations": [{"rule": "a"}]}
    used = {"$defs": {"M": model}, "$ref": "#/$defs/M", "x-kubernetes-validations": [{"rule": "b"}]}
    assert structural(used)["x-kubernetes-validations"] == [{"rule": "a"}, {"rule": "b"}]


def test_empty_defaults_are_left_out(version):
    """Empty defaults are left out, because the API server would write them into every resource and every status."""

    def defaults(schema):
        yield schema.get("default")
        for item in schema.get("properties", {}).values():
            yield from defaults(item)

    schema = version["schema"]["openAPIV3Schema"]["properties"]
    assert [value for value in defaults(schema["spec"]) if value in ({}, [], "")] == []
    unseen = {
        "observedGeneration": -1
    }  # means that nobody has seen the resource; without it, the resource would seem finished
    assert [value for value in defaults(schema["status"]) if value is not None] == [unseen]


def test_subresources_and_columns_point_at_fields(version):
    """Scale, status and the columns of `kubectl get` name fields that exist."""
    schema = version["schema"]["openAPIV3Schema"]["properties"]

    def exists(path: str) -> bool:
        node = {"properties": schema}
        for name in re.sub(r"\[.*?\]", "", path).lstrip(".").split("."):
            node = node.get("properties", {}).get(name, {})
            node = node.get("items", node)
        return bool(node)

    scale = version["subresources"]["scale"]
    columns = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"]}
    assert version["subresources"]["status"] == {}
    assert all(map(exists, scale.values()))
    assert all(exists(path) for path in columns.values() if not path.startswith(".metadata"))
    assert {"Ready", "State", "Lag", "Age"} <= columns.keys()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"a": {}}}, ".a: the type is None"),
        ({"type": "object", "properties": {"a": {"$ref": "#/x", "type": "string"}}}, ".a: `$ref` is not allowed"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, ".a: the type is 'null'"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, ".a: an array needs one schema for its `items`"),
        (
            {"type": "object", "properties": {}, "additionalProperties": False},
            "`additionalProperties` must be a schema",
        ),
        ({"type": "object", "properties": {"a": {"type": "string", "default": None}}}, ".a: the default is null"),
        ({"type": "object", "required": ["a"]}, "required field 'a' is not described"),
        ({"type": "string"}, "must be an object"),
        (
            {"type": "object", "properties": {"metadata": {"type": "object", "description": ""}}},
            "metadata must be left",
        ),
        ({"type": "object", "properties": {"a": {"type": "string", "format": "quantity"}}}, "does not know the format"),
        ({"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": True}}}, "an int-or-string has no type"),
        ({"type": "object", "anyOf": [{"type": "string"}]}, "`type` is not allowed inside anyOf"),
        (
            {"type": "object", "properties": {"a": {"type": "string", "title": "A", "const": 1}}},
            "`const` is not allowed",
        ),
    ],
)
def test_violations_of_structural_schemas_are_found(schema, reason):
    """Each rule of structural schemas is checked."""
    assert any(reason in found for found in violations(schema))


def test_models_without_structural_form_are_refused():
    """A union and a recursive model cannot be rewritten and are refused with a reason."""

    class Union(BaseModel):
        field: int | str | None = None

    class Tree(BaseModel):
        children: list[Tree] = []

    Tree.model_rebuild(_types_namespace={"Tree": Tree})
    with pytest.raises(ValueError, match="union has no structural form"):
        structural(Union.model_json_schema())
    with pytest.raises(ValueError, match="contains itself"):
        structural(Tree.model_json_schema())


def test_rewriting_does_not_change_the_original():
    """The argument is not changed."""
    schema = StreamsApp.model_json_schema()
    structural(schema)
    assert schema == StreamsApp.model_json_schema()
