"""The problems of a manifest, worded for its author.

Pydantic says which rule of which field is broken. Here this becomes a sentence that also says what to write instead: the
nearest known field or value, or the purpose of a missing field.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from millrace.manifest.yaml_document import Path

_LONGEST_VALUE = 80
_TYPE_NAMES = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}
_LIMITS = {
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "too_short": "must have at least {min_length}",
    "too_long": "must have at most {max_length}",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a manifest."""

    path: Path
    """The steps to the field, for example `("spec", "kafka", "bootstrapServers", 0)`; empty for the whole manifest."""
    rule: str
    """What is wrong, or what the value must be."""
    value: str | None = None
    """The value there, shortened; None if there is none."""
    line: int | None = None
    """The line in the text, from 1; None if there is no text."""

    @property
    def field(self) -> str:
        """The field as people write it, for example `spec.kafka.bootstrapServers[0]`."""
        text = ""
        for step in self.path:
            if isinstance(step, int):
                text += f"[{step}]"
            elif "." in step:
                text += f'["{step}"]'
            else:
                text += f".{step}" if text else step
        return text

    def __str__(self) -> str:
        got = "" if self.value is None else f" (got {self.value})"
        line = "" if self.line is None else f"line {self.line}: "
        field = f"{self.field}: " if self.path else ""
        return f"{line}{field}{self.rule}{got}"


def problem(item: ErrorDetails, root: type[BaseModel]) -> Problem:
    """Return one of pydantic's errors about a model as a problem."""
    path, value = tuple(step for step in item["loc"] if step != "[key]"), item["input"]
    text = _rule(item, path, root)
    # Messages end up in logs and conditions, so values that may hold secrets are not repeated.
    may_hold_secrets = isinstance(value, Mapping | BaseModel) or (isinstance(value, str) and "@" in value)
    if may_hold_secrets or item["type"] in {"missing", "extra_forbidden"}:
        return Problem(path, text)
    return Problem(path, text, shown(value))


def _rule(item: ErrorDetails, path: Path, root: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "missing":
        field = _fields_at(path[:-1], root).get(str(path[-1]))
        described = "" if field is None or field.description is None else field.description
        meaning = " ".join(described.split()).partition(". ")[0].rstrip(".")
        return f"is required: {meaning[0].lower()}{meaning[1:]}" if meaning else "is required"
    if kind == "extra_forbidden":
        known = _fields_at(path[:-1], root)
        by_lower = {field.lower(): field for field in known}
        near = difflib.get_close_matches(str(path[-1]).lower().replace("_", ""), by_lower, 1, 0.6)
        if near:
            return f"unknown field; did you mean `{by_lower[near[0]]}`?"
        return f"unknown field; the fields here are {', '.join(known)}"
    if kind in {"literal_error", "enum"}:
        expected = context["expected"]
        options = {option.strip("'").lower(): option for option in expected.replace(" or ", ", ").split(", ")}
        near = difflib.get_close_matches(str(item["input"]).lower().replace("-", "_"), options, 1, 0.6)
        return f"must be {expected}{f'; did you mean {options[near[0]]}?' if near else ''}"
    if kind in _TYPE_NAMES:
        return f"must be {_TYPE_NAMES[kind]}"
    if kind in _LIMITS:
        return _LIMITS[kind].format_map(context)
    return item["msg"]


def _fields_at(path: Path, root: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of the mapping at a path, by their names in the manifest; none if it is not a model's."""
    model: type[BaseModel] | None = root
    for step in path:
        if isinstance(step, str):
            field = _fields_at((), model).get(step) if model is not None else None
            model = None if field is None else _model_in(field.annotation)
    return {} if model is None else {str(field.alias): field for field in model.model_fields.values()}


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)


def shown(value: object) -> str:
    """Return a value as a message shows it: quoted, and shortened if it is long."""
    if value is None:
        return "nothing"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
