"""Quantities as the API server writes them.

The server keeps a quantity in its shortest form without a fraction (`1024Mi` becomes `1Gi`, `0.5` becomes `500m`). What the
operator wants is written so from the start, so that it equals what is read back.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

_QUANTITY: Final = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_BINARY: Final = {"": 0, "Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SMALLEST: Final = Decimal("1e-9")


def canonical_quantity(text: str | float) -> str:
    """Return a quantity in the API server's own notation.

    >>> [canonical_quantity(text) for text in ("1024Mi", "1.5Gi", "0.5", "1000m", "2000M", "1e3", "0.3Ki", 2)]
    ['1Gi', '1536Mi', '500m', '1', '2G', '1e3', '307200m', '2']
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 500m, 2 or 1Gi")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY and suffix:
        value = number * 1024 ** _BINARY[suffix]
        if abs(value) >= 1024 and value == value.to_integral_value():
            return _with_largest(value, {suffix: Decimal(1024) ** power for suffix, power in _BINARY.items()})
        return _decimal(value)
    if suffix in _DECIMAL:
        return _decimal(number.scaleb(_DECIMAL[suffix]))
    return _decimal(number.scaleb(int(suffix[1:])), exponents=True)


def _decimal(value: Decimal, *, exponents: bool = False) -> str:
    value = value.quantize(_SMALLEST, rounding=ROUND_CEILING)
    suffixes = {
        (f"e{power}" if power else "") if exponents else suffix: Decimal(10) ** power
        for suffix, power in _DECIMAL.items()
    }
    return _with_largest(value, suffixes)


def _with_largest(value: Decimal, factors: dict[str, Decimal]) -> str:
    if value == 0:
        return "0"
    suffix, factor = max(
        ((suffix, factor) for suffix, factor in factors.items() if value % factor == 0), key=lambda entry: entry[1]
    )
    return f"{int(value / factor)}{suffix}"
