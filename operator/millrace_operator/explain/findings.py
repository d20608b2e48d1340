"""What a finding is, and how objects are named in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters, the most first."""

    BLOCKING = "blocking"
    """No records are processed until someone acts."""
    WANTED = "wanted"
    """Nothing is processed because the spec says so."""
    PROBLEM = "problem"
    """Records are processed, but something is wrong."""
    WAITING = "waiting"
    """It resolves by itself."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that explains something."""

    severity: Severity
    subject: str
    """What it is about: an object or a condition."""
    what: str
    """What was found."""
    remedy: str = ""
    """What to do; empty if no action is needed."""
    points_elsewhere: bool = False
    """It only says where else to look."""


def age(seconds: float) -> str:
    """Return a duration in a short readable form.

    >>> age(45), age(600), age(90_000)
    ('45 s', '10 min', '25 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 7200 else f"{seconds // 3600:.0f} h"
