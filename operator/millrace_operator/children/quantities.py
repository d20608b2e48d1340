"""Quantities in the one form that the API server never rewrites: the shortest one without a fraction.

The server makes `1Gi` of `1024Mi` and `500m` of `0.5`. What the operator wants is written so from the start, so that it equals
what is read back.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

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
