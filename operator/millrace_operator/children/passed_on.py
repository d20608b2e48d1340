"""Parts of a pod that users write in Kubernetes' own words, in the form in which the API server keeps them.

The server drops nulls, and empty values of fields for which empty means absent; it rewrites quantities. What stays empty
on purpose (`emptyDir: {}`, a selector that selects everything) is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from millrace_operator.children.quantities import canonical_quantity

_ABSENT_WHEN_EMPTY: Final = frozenset(
    {"annotations", "labels", "limits", "matchLabels", "nodeSelector", "options", "requests", "securityContext"}
)
_ABSENT_WHEN_FALSE: Final = frozenset({"hostIPC", "hostNetwork", "hostPID", "readOnly", "stdin", "stdinOnce", "tty"})
_ABSENT_WHEN_ZERO: Final = frozenset({"initialDelaySeconds"})
_KEPT_WHEN_BLANK: Final = frozenset({"storageClassName", "volumeMode"})
_QUANTITIES: Final = frozenset({"divisor", "sizeLimit"})
_MAPS_OF_QUANTITIES: Final = frozenset({"limits", "requests"})


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
    if key in _QUANTITIES:
        return canonical_quantity(value)
    if key in _MAPS_OF_QUANTITIES and isinstance(value, Mapping):
        return {name: canonical_quantity(amount) for name, amount in value.items()}
    return _kept(value)


def _is_absent(key: str, value: Any) -> bool:
    if value is None or value == []:
        return True
    if value == "":
        return key not in _KEPT_WHEN_BLANK
    if value == {}:
        return key in _ABSENT_WHEN_EMPTY
    return (value is False and key in _ABSENT_WHEN_FALSE) or (value == 0 and key in _ABSENT_WHEN_ZERO)
