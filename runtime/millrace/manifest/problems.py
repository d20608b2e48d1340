"""What is wrong with a manifest, worded for the person who wrote it.

Pydantic says which rule of which field is broken. Here that becomes a sentence that also says what to write instead: the
nearest known field or value, or what a missing field is for.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel
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
    """What it must be, or what is wrong with it."""
    value: str | None = None
    """The value there, shortened; None if there is none."""
    line: int | None = None
    """The line in the text, from 1; None if there is no text."""

    @property
    def field(self) -> str:
        """The field as people write it, for example `spec.kafka.bootstrapServers[0]`."""
        return _dotted(self.path)

    def __str__(self) -> str:
        got = "" if self.value is None else f" (got {self.value})"
        line = "" if self.line is None else f"line {self.line}: "
        field = f"{self.field}: " if self.path else ""
        return f"{line}{field}{self.rule}{got}"


def problem(item: ErrorDetails, root: type[BaseModel]) -> Problem:
    """Return one of pydantic's errors about a model as a problem."""
    path = _field_path(item["loc"])
    text = _rule(item, path, root)
    if item["type"] in {"missing", "extra_forbidden"} or _may_hold_secrets(item):
        return Problem(path, text)
    return Problem(path, text, shown(item["input"]))


def _may_hold_secrets(item: ErrorDetails) -> bool:
    """Return whether to keep the value out of messages, which end up in logs and conditions."""
    value = item["input"]
    return isinstance(value, Mapping | BaseModel) or (isinstance(value, str) and "@" in value)


def _rule(item: ErrorDetails, path: Path, root: type[BaseModel]) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "missing":
        return f"is required{_meaning(path, root)}"
    if kind == "extra_forbidden":
        return _unknown_field(path, root)
    if kind in {"literal_error", "enum"}:
        return f"must be {context['expected']}{_nearest(item['input'], context['expected'])}"
    if kind in _TYPE_NAMES:
        return f"must be {_TYPE_NAMES[kind]}"
    if kind in _LIMITS:
        return _LIMITS[kind].format_map(context)
    return item["msg"]


def _unknown_field(path: Path, root: type[BaseModel]) -> str:
    model = _model_at(path[:-1], root)
    known = [] if model is None else [str(field.alias) for field in model.model_fields.values()]
    name = str(path[-1])
    by_lower = {field.lower(): field for field in known}
    near = difflib.get_close_matches(name.lower().replace("_", ""), by_lower, 1, 0.6)
    if near:
        return f"unknown field; did you mean `{by_lower[near[0]]}`?"
    return f"unknown field; the fields here are {', '.join(known)}"


def _meaning(path: Path, root: type[BaseModel]) -> str:
    model = _model_at(path[:-1], root)
    fields = {} if model is None else {field.alias: field for field in model.model_fields.values()}
    field = fields.get(str(path[-1]))
    description = None if field is None else field.description
    first = "" if not description else " ".join(description.split()).partition(". ")[0].rstrip(".")
    return f": {first[0].lower()}{first[1:]}" if first else ""


def _nearest(value: object, expected: str) -> str:
    options = [option.strip("'") for option in expected.replace(" or ", ", ").split(", ")]
    near = difflib.get_close_matches(
        str(value).lower().replace("-", "_"), [option.lower() for option in options], 1, 0.6
    )
    return f"; did you mean '{next(option for option in options if option.lower() == near[0])}'?" if near else ""


def _model_at(path: Path, root: type[BaseModel]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    for step in path:
        if isinstance(step, int):
            continue
        fields = {} if model is None else {field.alias: field for field in model.model_fields.values()}
        if step not in fields:
            return None
        model = _model_in(fields[step].annotation)
    return model


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, typing.get_args(annotation))), None)


def _field_path(location: tuple[int | str, ...]) -> Path:
    return tuple(step for step in location if step != "[key]")


def _dotted(path: Path) -> str:
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif "." in step:
            text += f'["{step}"]'
        else:
            text += f".{step}" if text else step
    return text


def shown(value: object) -> str:
    """Return a value as a message shows it: quoted, and shortened if it is long."""
    if value is None:
        return "nothing"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
