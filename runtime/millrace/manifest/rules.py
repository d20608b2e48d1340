"""Rules about values that bad manifests break, in Python and in CEL, which the API server checks at `kubectl apply`.

A rule belongs in a field's `Annotated`, or in its model's `rules` when it is about several fields. `millrace.manifest.crd` writes
the rules into the CRDs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
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


def with_rules(schema: JsonSchemaValue, rules: Sequence[Validation]) -> JsonSchemaValue:
    """Return a copy of a schema with additional rules for the API server to check."""
    return {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, ()), *rules]} if rules else schema


def rule_error(rule: str) -> PydanticCustomError:
    """Return the error for a value that breaks a rule, worded to follow the field's path: `must be …`."""
    return PydanticCustomError("manifest_rule", "{rule}", {"rule": rule})
