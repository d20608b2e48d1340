"""`Named`: the name of an operator."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.checks import Suggesting, checked_name, wrong


@dataclass(frozen=True, slots=True)
class Named(Suggesting):
    """The name of an operator's node; a plain string does the same."""

    name: str

    def __post_init__(self) -> None:
        checked_name(self.name)

    @classmethod
    def as_(cls, name: str) -> Named:
        """Return the name."""
        return cls(name)


def name_of(named: Named | str | None) -> str | None:
    """Return the text of a name, checked.

    Raises:
        TopologyError: it is not a name, or has characters that are illegal in topic names.
    """
    if named is None:
        return None
    if not isinstance(named, Named | str):
        raise wrong("named", "a Named or a text", named)
    return checked_name(named) if isinstance(named, str) else named.name
