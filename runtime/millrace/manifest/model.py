"""What every model of a resource has in common: strict types, no unknown fields, camelCase names, descriptions, rules.

The models are the one source of the CRDs (`millrace.manifest.crd`) and of local validation (`millrace.manifest.loader`), so
that a manifest is judged alike by `millrace dev up`, the operator and the API server. A `Rule` says the same in Python and in
CEL, which the API server checks; it stands in a field's `Annotated`, or in its model's `rules` when it is about several fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"
Validation = dict[str, str]
"""A rule in CEL, with its message."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule over a value, in both languages: an annotation of a field, or one of a model's `rules`."""

    holds: Callable[[Any], bool]
    """Whether a value keeps it."""
    cel: str | None
    """The same over `self`, for the API server; None where the schema says it already."""
    message: str
    """What the author is told, worded so that it reads after the field's path: `must be …`."""
    offenders: Callable[[Any], str] | None = None
    """What of a value breaks the rule; told after the message and a colon."""
    candidates: str = ""
    """What the API server, which cannot tell that, says there instead."""

    def check(self, value: Any) -> Any:
        """Return the value.

        Raises:
            PydanticCustomError: It breaks the rule.
        """
        if not self.holds(value):
            raise rule_error(f"{self.message}: {self.offenders(value)}" if self.offenders else self.message)
        return value

    def validations(self) -> list[Validation]:
        """Return the rule as the API server takes it."""
        if self.cel is None:
            return []
        return [{"rule": self.cel, "message": ": ".join(filter(None, (self.message, self.candidates)))}]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check values of the type that is annotated."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rule to the schema of that type."""
        return with_rules(handler(schema), self.validations())


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """A rule about changes of a value, which only the API server can check; stands where a `Rule` can."""

    cel: str
    """CEL over `self` and `oldSelf`."""
    message: str
    """What the author is told."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rule to the schema of the type that is annotated."""
        return with_rules(handler(schema), self.validations())

    def validations(self) -> list[Validation]:
        """Return the rule as the API server takes it."""
        return [{"rule": self.cel, "message": self.message}]


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
    transition_rules: ClassVar[tuple[TransitionRule, ...]] = ()
    """What must hold when they change."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Leave out fields that are null, such as `config:` with nothing after it, as the API server does."""
        if not isinstance(value, Mapping):
            return value
        names = {name for field, info in cls.model_fields.items() for name in (field, info.alias)}
        return {key: item for key, item in value.items() if item is not None or key not in names}

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        for rule in self.rules:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rules to the schema."""
        outer = handler(schema)
        own = handler.resolve_ref_schema(outer)
        rules = [validation for rule in cls.rules for validation in rule.validations()]
        own.update(
            with_rules(
                own, [*rules, *(validation for change in cls.transition_rules for validation in change.validations())]
            )
        )
        return outer


class StatusModel(ManifestModel):
    """A part of a status, which the operator writes; fields of a newer operator are ignored."""

    model_config = ConfigDict(extra="ignore")


class KubernetesModel(ManifestModel):
    """A value of a type of Kubernetes' own: what Millrace needs of it is checked, and all of it is handed on."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})


def with_rules(schema: JsonSchemaValue, rules: Sequence[Validation]) -> JsonSchemaValue:
    """Return a schema with rules for the API server to check, beside those it has; the one handed in is not changed."""
    return {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, ()), *rules]} if rules else schema


def rule_error(rule: str) -> PydanticCustomError:
    """Return the error of a value that breaks a rule, worded `must be …` so that it reads after the field's path."""
    return PydanticCustomError("manifest_rule", "{rule}", {"rule": rule})
