"""What every model of a resource has in common: strict types, no unknown fields, camelCase names, descriptions.

The models are the one source of the CRDs (`millrace.manifest.crd`) and of local validation (`millrace.manifest.loader`), so
that a manifest is judged alike by `millrace dev up`, the operator and the API server. A rule that the API server is to check
with CEL stands beside its field with `cel`, or, when it is about several fields, in its model's `rules`, where the same rule in
Python stands next to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

VALIDATIONS = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over several fields of a model, in both languages."""

    holds: Callable[[Any], bool]
    """Whether a model keeps it."""
    cel: str
    """The same over `self`, for the API server."""
    message: str
    """What the author is told; it names the fields and begins so that it reads after the mapping's path."""


class ManifestModel(BaseModel):
    """A part of a manifest that its user writes; immutable. An attribute's docstring is its description in the CRD."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """What its fields demand of each other."""
    transitions: ClassVar[dict[str, str]] = {}
    """Rules about changes, which only the API server can check: CEL over `self` and `oldSelf`, and what the user is told."""

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise broken(rule.message)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rules to the schema."""
        schema = handler(core_schema)
        pairs = [*((rule.cel, rule.message) for rule in cls.rules), *cls.transitions.items()]
        if pairs:
            handler.resolve_ref_schema(schema).update(cel(*pairs))
        return schema


class StatusModel(ManifestModel):
    """A part of a status, which the operator writes; fields of a newer operator are ignored."""

    model_config = ConfigDict(extra="ignore")


class PassedOn(ManifestModel):
    """A value of a type of Kubernetes' own: what Millrace needs of it is checked, and all of it is handed on."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """Return the schema extension that has the API server check rules.

    Args:
        rules: CEL expressions over `self` (and `oldSelf`, for a rule about changes), each with what the user is told when it
            is false.
    """
    return {VALIDATIONS: [{"rule": rule, "message": message} for rule, message in rules]}


def broken(rule: str) -> PydanticCustomError:
    """Return the error of a value that breaks a rule, worded `must be …` so that it reads after the field's path."""
    return PydanticCustomError("manifest_rule", "{rule}", {"rule": rule})
