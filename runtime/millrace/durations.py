"""Durations as users write them: a `timedelta`, a text such as "10s", or milliseconds."""

from __future__ import annotations

import operator
import re
from datetime import timedelta
from typing import Final, SupportsIndex

from millrace.checks import mistake

Duration = timedelta | str | int
"""A timedelta, a text such as "500ms", "10s" or "1h30m", or milliseconds."""

_PART: Final = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_MS: Final = 2**63 - 1
_MILLISECOND: Final = timedelta(milliseconds=1)


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration that is written as numbers with units.

    >>> duration_ms("1m30s"), duration_ms("100ms")
    (90000, 100)
    """
    return sum(int(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text))


def duration_text(millis: int) -> str:
    """Return a duration as a text that `duration_ms` reads.

    >>> duration_text(90_000), duration_text(86_400_000), duration_text(0)
    ('1m30s', '1d', '0ms')
    """
    parts, rest = "", millis
    for unit, length in reversed(_UNIT_MS.items()):
        count, rest = divmod(rest, length)
        if count:
            parts += f"{count}{unit}"
    return parts or "0ms"


def to_millis(duration: Duration, what: str, *, minimum: int | None = 0) -> int:
    """Return whole milliseconds.

    Raises:
        TopologyError: it is not a duration, has a fraction of a millisecond, or is less than `minimum` milliseconds; `what` names
            it in the message.

    >>> to_millis("10s", "The size"), to_millis(timedelta(seconds=10), "The size"), to_millis(10_000, "The size")
    (10000, 10000, 10000)
    """
    given: object = duration
    if isinstance(given, timedelta):
        if given % _MILLISECOND:
            raise mistake(f"{what} must be whole milliseconds, not {given}")
        millis = given // _MILLISECOND
    elif isinstance(given, SupportsIndex) and not isinstance(given, bool):
        millis = operator.index(given)
    elif isinstance(given, str) and re.fullmatch(f"({_PART.pattern})+", given):
        millis = duration_ms(given)
    else:
        raise mistake(
            f'{what} must be a timedelta, a text such as "10s" or "1h30m", or whole milliseconds as an int, not {given!r}'
        )
    if minimum is not None and millis < minimum:
        raise mistake(f"{what} must be at least {minimum} ms, not {millis} ms")
    if millis > _LONGEST_MS:
        raise mistake(f"{what} must be less than 2⁶³ ms, not {millis} ms")
    return millis
