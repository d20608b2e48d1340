"""The base of all models of resources: strict types, no unknown fields, camelCase names, descriptions, rules.

The models are the single source of the CRDs (`millrace.manifest.crd`) and of local validation (`millrace.manifest.loader`), so
that `millrace dev up`, the operator and the API server accept the same manifests. `Rule`s say what values must be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from millrace.manifest.rules import Rule, with_rules


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
