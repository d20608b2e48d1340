"""The base of all models of resources: strict types, no unknown fields, camelCase names, descriptions, rules.

The models are the single source of the CRDs (`millrace.manifest.crd`) and of local validation (`millrace.manifest.loader`), so
that `millrace dev up`, the operator and the API server accept the same manifests. A `Rule` is written both in Python and in CEL,
which the API server checks. It belongs in a field's `Annotated`, or in its model's `rules` when it is about several fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"
_T = TypeVar("_T")

Validation = dict[str, str]
"""A rule in CEL, with its message."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about a value, in Python and CEL: an annotation of a field, or one of a model's `rules`."""

    holds: Callable[[Any], bool] | None
    """Whether a value satisfies it; None for a rule about changes, which only the API server can check."""
    cel: str | None
    """The same about `self` (and `oldSelf`), for the API server; None if the schema already says it."""
    message: str
    """The message for the author, worded to follow the field's path: `must be …`."""
    offenders: Callable[[Any], str] | None = None
    """Names the parts of a value that break the rule; shown after the message and a colon."""
    candidates: str = ""
    """The text that the API server, which cannot name them, shows there instead."""

    def check(self, value: _T) -> _T:
        """Return the value.

        Raises:
            PydanticCustomError: The value breaks the rule.
        """
        if self.holds is not None and not self.holds(value):
            raise rule_error(f"{self.message}: {self.offenders(value)}" if self.offenders else self.message)
        return value

    def validations(self) -> list[Validation]:
        """Return the rule in the API server's form."""
        if self.cel is None:
            return []
        return [{"rule": self.cel, "message": ": ".join(filter(None, (self.message, self.candidates)))}]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check values of the annotated type."""
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rule to the schema of the annotated type."""
        return with_rules(handler(schema), self.validations())


class ManifestModel(BaseModel):
    """A part of a manifest that users write; immutable. An attribute's docstring is its description in the CRD."""

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
    """Rules about several fields together."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        """Drop fields that are null, such as `config:` with nothing after it, as the API server does."""
        if not isinstance(value, Mapping):
            return value
        names = {name for field, info in cls.model_fields.items() for name in (field, info.alias)}
        return {key: item for key, item in value.items() if item is not None or key not in names}

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rules to the schema."""
        outer = handler(schema)
        own = handler.resolve_ref_schema(outer)
        own.update(with_rules(own, [validation for rule in cls.rules for validation in rule.validations()]))
        return outer


class StatusModel(ManifestModel):
    """A part of a status, which the operator writes; fields that a newer operator added are ignored."""

    model_config = ConfigDict(extra="ignore")


class KubernetesModel(ManifestModel):
    """A value of one of Kubernetes' own types: only the fields that Millrace needs are checked, and all are passed through."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})


def with_rules(schema: JsonSchemaValue, rules: Sequence[Validation]) -> JsonSchemaValue:
    """Return a copy of a schema with additional rules for the API server to check."""
    return {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, ()), *rules]} if rules else schema


def rule_error(rule: str) -> PydanticCustomError:
    """Return the error for a value that breaks a rule, worded to follow the field's path: `must be …`."""
    return PydanticCustomError("manifest_rule", "{rule}", {"rule": rule})
