"""Drift: whether a child has to be applied, because it is missing, is wanted differently now, or was changed by somebody.

The hash of what was last applied, stored on the child, shows when a field is no longer wanted; comparing what is wanted with what
exists shows when somebody has changed it. Defaults and other managers' fields count as neither, so a healthy application causes
no writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from millrace.manifest.fields import quantity_value
from millrace_operator.children.naming import APP_UID_LABEL, APPLIED_ANNOTATION
from millrace_operator.model import Json, Object

_QUANTITY_MAPS: Final = frozenset({"requests", "limits", "capacity"})
_QUANTITIES: Final = frozenset({"sizeLimit", "divisor"})


def stamped(wanted: Object, app_uid: str | None) -> Json:
    """Return an object with its application's uid as a label and its own hash as an annotation.

    Args:
        wanted: The object; templates in it stay as they are.
        app_uid: The uid; None for an object that outlives the application.
    """
    metadata = wanted["metadata"]
    if app_uid is not None:
        metadata = {**metadata, "labels": {**metadata.get("labels", {}), APP_UID_LABEL: app_uid}}
    canonical = json.dumps({**wanted, "metadata": metadata}, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
    return {
        **wanted,
        "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), APPLIED_ANNOTATION: digest}},
    }


def needs_apply(wanted: Object, seen: Object | None) -> bool:
    """Return whether a stamped object wants something that the observed one does not have."""
    return seen is None or not is_part_of(wanted, seen)


def is_part_of(wanted: object, seen: object, key: str = "", parent: str = "") -> bool:
    """Return whether everything wanted is there; quantities are compared by value, named list entries by name."""
    if wanted == seen:  # which is quicker than to look into what is equal
        return True
    if isinstance(wanted, Mapping):
        found = seen if isinstance(seen, Mapping) else {}
        return all(is_part_of(item, found.get(name), name, key) for name, item in wanted.items())
    if isinstance(wanted, list | tuple):
        return _list_is_part_of(wanted, seen or [], key)
    if parent in _QUANTITY_MAPS or key in _QUANTITIES or key in _QUANTITY_MAPS:
        try:
            return _quantity_milli(wanted) == _quantity_milli(seen)
        except (AssertionError, KeyError, TypeError, ValueError):
            return False
    return not wanted and seen is None


def _list_is_part_of(wanted: Sequence[object], seen: object, key: str) -> bool:
    if not isinstance(seen, list | tuple):
        return False
    named, by_name = _by_name(wanted), _by_name(seen)
    if named and by_name is not None:
        return all(name in by_name and is_part_of(item, by_name[name], key) for name, item in named.items())
    return len(wanted) == len(seen) and all(is_part_of(a, b, key) for a, b in zip(wanted, seen, strict=True))


def _by_name(items: Sequence[object]) -> Json | None:
    """Return the entries of a list by their names; None if they do not all have one of their own."""
    named = {item["name"]: item for item in items if isinstance(item, Mapping) and isinstance(item.get("name"), str)}
    return named if len(named) == len(items) else None


def _quantity_milli(value: object) -> int:
    """Return a quantity in thousandths, rounded up."""
    text = str(value)
    return quantity_value(text[:-1]) if text.endswith("m") else quantity_value(text) * 1000
