"""What a finding is, and how objects are named in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters, the most first."""

    BLOCKING = "blocking"
    """It keeps records from being processed until someone does something."""
    WANTED = "wanted"
    """Nothing is processed because someone said so."""
    PROBLEM = "problem"
    """Records are processed, but something is wrong."""
    WAITING = "waiting"
    """It passes by itself."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that explains something."""

    severity: Severity
    subject: str
    """What it is about: an object, or a condition."""
    what: str
    """What is the case."""
    remedy: str = ""
    """What to do; empty if nothing need be done."""
    points_elsewhere: bool = False
    """It only says where else to look."""


def age(seconds: float) -> str:
    """Return a duration as people say it.

    >>> age(45), age(600), age(90_000)
    ('45 s', '10 min', '25 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 7200 else f"{seconds // 3600:.0f} h"
