"""Checks of the chart that need no helm: values against their schema, and files that repeat others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from millrace import __version__
from millrace.manifest import crd

CHART = Path(__file__).parents[2] / "charts" / "millrace-operator"


def _schema() -> dict[str, Any]:
    return json.loads((CHART / "values.schema.json").read_text())


def _values() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def test_chart_has_the_projects_crds() -> None:
    """The chart installs what the models define; if this fails, run `make crds`."""
    assert {path.name: path.read_text() for path in (CHART / "files" / "crds").iterdir()} == crd.files()


def test_default_values_satisfy_the_schema() -> None:
    """A release without custom values is valid."""
    jsonschema.Draft7Validator.check_schema(_schema())
    jsonschema.Draft7Validator(_schema()).validate(_values())


def test_every_value_is_in_the_schema_and_has_a_default() -> None:
    """`helm show values` and the schema have the same values, at every level, each with a description."""
    defaults: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("", _schema(), _values())]
    while defaults:
        path, schema, values = defaults.pop()
        if "properties" not in schema:
            continue
        assert {*schema["properties"]} - {"global"} == {*values}, path
        assert schema["additionalProperties"] is False
        for name, inner in schema["properties"].items():
            assert inner["description"].endswith("."), f"{path}.{name}"
            if isinstance(values.get(name), dict):
                defaults.append((f"{path}.{name}", inner, values[name]))


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"replica": 2}, "replica"),
        ({"operator": {"loglevel": "INFO"}}, "loglevel"),
        ({"operator": {"logLevel": "verbose"}}, "verbose"),
        ({"operator": {"workers": 0}}, "0 is less than"),
        ({"watchNamespaces": "orders"}, "'orders' is not of type 'array'"),
        ({"watchNamespaces": ["Orders"]}, "Orders"),
        ({"image": {"digest": "latest"}}, "latest"),
        ({"metrics": {"serviceMonitor": {"interval": 30}}}, "30 is not of type 'string'"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], wrong: str) -> None:
    """A misspelt name, or a value of the wrong type or out of range, is an error that names it, not silently ignored."""
    with pytest.raises(jsonschema.ValidationError, match=wrong):
        jsonschema.Draft7Validator(_schema()).validate(values)


def test_chart_has_the_package_version() -> None:
    """The chart's appVersion, which is the image's default tag, is the version of the code."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__
