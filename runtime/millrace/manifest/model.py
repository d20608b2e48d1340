"""What every model of a resource has in common: strict types, no unknown fields, camelCase names, descriptions.

The models are the one source of the CRDs (`millrace.manifest.crd`) and of local validation (`millrace.manifest.loader`), so
that a manifest is judged alike by `millrace dev up`, the operator and the API server. A rule that the API server is to check
with CEL is declared beside its field with `cel`; the same rule is then also enforced here, in Python.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


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


class StatusModel(ManifestModel):
    """A part of a status, which the operator writes; fields of a newer operator are ignored."""

    model_config = ConfigDict(extra="ignore")


def cel(rule: str, message: str) -> dict[str, Any]:
    """Return the schema extension that has the API server check a rule.

    Args:
        rule: A CEL expression over `self` (and `oldSelf`, for a rule about changes).
        message: What the user is told when it is false.
    """
    return {"x-kubernetes-validations": [{"rule": rule, "message": message}]}


def broken(rule: str) -> PydanticCustomError:
    """Return the error of a value that breaks a rule, worded `must be …` so that it reads after the field's path."""
    return PydanticCustomError("manifest_rule", "{rule}", {"rule": rule})
