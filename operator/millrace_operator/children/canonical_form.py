"""Values in the form in which the API server stores them, so that what is wanted equals what is read back.

The server drops nulls, and empty values of fields for which empty means absent; it rewrites quantities (`1024Mi` to `1Gi`, `0.5`
to `500m`). What stays empty on purpose (`emptyDir: {}`, a selector that selects everything) is left alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

from pydantic import BaseModel

from millrace_operator.model import Json

_MAPS: Final = frozenset({"annotations", "labels", "matchLabels", "nodeSelector", "options", "volumeAttributes"})
"""Fields whose keys are the user's own; empty means absent."""
_MAPS_OF_QUANTITIES: Final = frozenset({"limits", "requests"})
"""Likewise, with quantities for values."""
_QUANTITIES: Final = frozenset({"divisor", "sizeLimit"})
_ABSENT_WHEN_EMPTY: Final = _MAPS | _MAPS_OF_QUANTITIES | {"securityContext"}
_ABSENT_WHEN_FALSE: Final = frozenset({"readOnly", "stdin", "stdinOnce", "tty"})
_ABSENT_WHEN_ZERO: Final = frozenset(
    {"failureThreshold", "hostPort", "initialDelaySeconds", "periodSeconds", "successThreshold", "timeoutSeconds"}
)
_KEPT_WHEN_BLANK: Final = frozenset({"storageClassName"})


def canonical(value: BaseModel) -> Json:
    """Return a part of a manifest as the API server would store it."""
    stored = _stored(value.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert isinstance(stored, dict)
    return stored


def canonical_list(values: Iterable[BaseModel]) -> list[Json]:
    """Return a list of parts of a manifest as the API server would store it."""
    return [canonical(value) for value in values]


def _stored(value: object, key: str = "") -> object:
    """Return a value as it is stored in the field `key`."""
    if key in _MAPS:
        return value
    if key in _QUANTITIES:
        return _quantity(value)
    if isinstance(value, Mapping):
        if key in _MAPS_OF_QUANTITIES:
            return {name: _quantity(amount) for name, amount in value.items()}
        return {name: _stored(item, name) for name, item in value.items() if not _is_absent(name, item)}
    return [_stored(item) for item in value] if isinstance(value, list) else value


def _quantity(value: Any) -> object:
    """Return a quantity in the server's notation; anything else is left for the server to refuse, with its own message."""
    try:
        return canonical_quantity(value)
    except ValueError:
        return value


def _is_absent(key: str, value: object) -> bool:
    if value is None or value == []:
        return True
    if value == "":
        return key not in _KEPT_WHEN_BLANK
    if value == {}:
        return key in _ABSENT_WHEN_EMPTY
    return (value is False and key in _ABSENT_WHEN_FALSE) or (value == 0 and key in _ABSENT_WHEN_ZERO)


_QUANTITY: Final = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_BINARY: Final = {"": 0, "Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SMALLEST: Final = Fraction(1, 10**9)


def canonical_quantity(text: str | float) -> str:
    """Return a quantity in the API server's own notation.

    >>> [canonical_quantity(text) for text in ("1024Mi", "1.5Gi", "0.5", "1000m", "2000M", "1e3", "0.3Ki", 2)]
    ['1Gi', '1536Mi', '500m', '1', '2G', '1e3', '307200m', '2']
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 500m, 2 or 1Gi")
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix and suffix in _BINARY:
        value = number * 1024 ** _BINARY[suffix]
        if abs(value) >= 1024 and value.denominator == 1:
            return _with_largest(value, {suffix: Fraction(1024) ** power for suffix, power in _BINARY.items()})
        return _decimal(value)
    if suffix in _DECIMAL:
        return _decimal(number * Fraction(10) ** _DECIMAL[suffix])
    return _decimal(number * Fraction(10) ** int(suffix[1:]), exponents=True)


def _decimal(value: Fraction, *, exponents: bool = False) -> str:
    factors = {
        (f"e{power}" if power else "") if exponents else suffix: Fraction(10) ** power
        for suffix, power in _DECIMAL.items()
    }
    return _with_largest(math.ceil(value / _SMALLEST) * _SMALLEST, factors)


def _with_largest(value: Fraction, factors: dict[str, Fraction]) -> str:
    if value == 0:
        return "0"
    fitting = ((suffix, factor) for suffix, factor in factors.items() if (value / factor).denominator == 1)
    suffix, factor = max(fitting, key=lambda entry: entry[1])
    return f"{value / factor}{suffix}"
