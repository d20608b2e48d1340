"""Parts of a pod that users write in Kubernetes' own words, in the form in which the API server keeps them.

The server drops nulls, and empty values of fields for which empty means absent; it rewrites quantities. What stays empty
on purpose (`emptyDir: {}`, a selector that selects everything) is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from millrace_operator.children.quantities import canonical_quantity

_MAPS: Final = frozenset({"annotations", "labels", "matchLabels", "nodeSelector", "options", "volumeAttributes"})
"""Fields whose keys are the user's own; empty means absent."""
_MAPS_OF_QUANTITIES: Final = frozenset({"limits", "requests"})
"""As before, with quantities for values."""
_QUANTITIES: Final = frozenset({"divisor", "sizeLimit"})
_ABSENT_WHEN_EMPTY: Final = _MAPS | _MAPS_OF_QUANTITIES | {"securityContext"}
_ABSENT_WHEN_FALSE: Final = frozenset({"readOnly", "stdin", "stdinOnce", "tty"})
_ABSENT_WHEN_ZERO: Final = frozenset(
    {"failureThreshold", "hostPort", "initialDelaySeconds", "periodSeconds", "successThreshold", "timeoutSeconds"}
)
_KEPT_WHEN_BLANK: Final = frozenset({"storageClassName"})


def as_kept(value: BaseModel) -> dict[str, Any]:
    """Return a part of a manifest as the API server would keep it."""
    kept = _kept(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert isinstance(kept, dict)
    return kept


def all_as_kept(values: Iterable[BaseModel]) -> list[dict[str, Any]]:
    """Return a list of parts of a manifest as the API server would keep it."""
    return [as_kept(value) for value in values]


def _kept(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _entry(key, item) for key, item in value.items() if not _is_absent(key, item)}
    if isinstance(value, list):
        return [_kept(item) for item in value]
    return value


def _entry(key: str, value: Any) -> Any:
    if key in _MAPS:
        return value
    if key in _QUANTITIES:
        return _quantity(value)
    if key in _MAPS_OF_QUANTITIES and isinstance(value, Mapping):
        return {name: _quantity(amount) for name, amount in value.items()}
    return _kept(value)


def _quantity(value: Any) -> Any:
    """Return a quantity in the server's notation; what is none is left for the server to refuse, with its own message."""
    try:
        return canonical_quantity(value)
    except ValueError:
        return value


def _is_absent(key: str, value: Any) -> bool:
    if value is None or value == []:
        return True
    if value == "":
        return key not in _KEPT_WHEN_BLANK
    if value == {}:
        return key in _ABSENT_WHEN_EMPTY
    return (value is False and key in _ABSENT_WHEN_FALSE) or (value == 0 and key in _ABSENT_WHEN_ZERO)
