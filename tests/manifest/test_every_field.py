"""Every field with right and wrong values: no field can be added without a case for its error message."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.manifest import wrong

from millrace.manifest import KINDS, StreamsApp, check
from millrace.manifest.crd import schema_of
from millrace.manifest.rules import VALIDATIONS

TABLE = list(wrong.table())


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field holds, alone or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, typing.get_args(annotation))), None)


def is_list(annotation: Any) -> bool:
    """Return whether a field holds a list."""
    return typing.get_origin(annotation) is tuple or any(map(is_list, typing.get_args(annotation)))


def fields(model: type[BaseModel], path: str) -> Iterator[str]:
    """Yield the paths of all fields below a model; entries of lists are `0`."""
    for field in model.model_fields.values():
        here = f"{path}/{field.alias}"
        yield here
        inner = model_in(field.annotation)
        if inner:
            yield from fields(inner, f"{here}/0" if is_list(field.annotation) else here)


def fields_of(kind: str, part: str = "spec") -> set[str]:
    """Return the paths of all fields of a kind's spec or status."""
    model = model_in(KINDS[kind].model_fields[part].annotation)
    assert model
    return {part, *fields(model, part)}


def paths_in(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of everything in a manifest's data; entries of lists are `0`."""
    yield path
    items = (
        value.items() if isinstance(value, dict) else [("0", item) for item in value] if isinstance(value, list) else []
    )
    for key, item in items:
        yield from paths_in(item, f"{path}/{key}")


def first(path: str) -> str:
    """Return a path in which every list entry is the first."""
    return re.sub(r"/\d+", "/0", path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_a_wrong_value(kind):
    """For each field of the models, the table has a value that is refused."""
    tried = {first(case.field) for case in TABLE if case.kind == kind}
    assert fields_of(kind) - tried == set()


@pytest.mark.parametrize("part", ["spec", "status"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_good_example_has_every_field(kind, part):
    """`good/everything.yaml` and the examples of other ways to connect have every field, so an API server sees each one."""
    others = [wrong.good(name).get(kind, {}) for name in wrong.OTHER_WAYS]
    examples = [wrong.good("everything")[kind], *others]
    given = {path for example in examples for path in paths_in(example.get(part, {}), part)}
    assert fields_of(kind, part) - given == set()


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_wrong_value_is_refused_with_its_field_and_rule(case):
    """The message names the field that is wrong, and says what it must be."""
    model, problems = check(case.manifest, KINDS[case.kind])
    assert model is None
    told = {first("/".join(map(str, problem.path))): str(problem) for problem in problems}
    assert first(case.at) in told
    assert case.says in told[first(case.at)]


@pytest.mark.parametrize("name", ["minimal", "everything"])
@pytest.mark.parametrize("kind", KINDS)
def test_good_manifest_is_accepted(name, kind):
    """The smallest and the fullest manifest are valid."""
    model, problems = check(wrong.good(name)[kind], KINDS[kind])
    assert problems == []
    assert isinstance(model, KINDS[kind])


@pytest.mark.parametrize("name", wrong.OTHER_WAYS)
def test_other_ways_to_brokers_are_accepted(name):
    """Each way to connect to brokers has its own manifest, because they exclude each other."""
    assert check(wrong.good(name)["StreamsApp"], StreamsApp)[1] == []


@pytest.mark.parametrize("kind", KINDS)
def test_written_manifest_can_be_read_back(kind):
    """A dump of only the set fields is the original manifest, and reads back as the same model."""
    data = wrong.good("everything")[kind]
    model, _ = check(data, KINDS[kind])
    assert model
    again = model.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert check(again, KINDS[kind]) == (model, [])
    assert set(paths_in(again["spec"], "spec")) == set(paths_in(data["spec"], "spec"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("config", {"sasl.password": "hunter2"}),
        ("config", {"producer.sasl.jaas.config": 'Plain required password="hunter2";'}),
        ("schemaRegistry", {"url": "https://user:hunter2@registry.example"}),
        ("auth", {"type": "plain", "secretRef": {"name": "a"}, "password": "hunter2"}),
        ("auth", {"type": "plain", "password": "hunter2"}),
        ("tls", {"caSecretRef": {"name": "a", "keys": {"ca.crt": "ca", "hunter2": "b"}}, "auth": "hunter2"}),
    ],
)
def test_possible_secrets_are_not_repeated(field, value):
    """Messages end up in logs and conditions, so they do not contain a password that was written in the wrong place."""
    manifest = wrong.good("minimal")["StreamsApp"]
    manifest["spec"]["kafka"][field] = value
    model, problems = check(manifest, StreamsApp)
    assert model is None
    assert problems
    assert "hunter2" not in "".join(map(str, problems))


def test_every_transition_rule_has_a_case():
    """Every transition rule has a case that breaks it; only an API server can check them, as `e2e/` does."""

    def messages(schema: dict) -> Iterator[str]:
        yield from (rule["message"] for rule in schema.get(VALIDATIONS, ()) if "oldSelf" in rule["rule"])
        for item in schema.get("properties", {}).values():
            yield from messages(item)

    told = {message for model in KINDS.values() for message in messages(schema_of(model))}
    assert {change.refused for change in wrong.changes() if change.refused} == told
