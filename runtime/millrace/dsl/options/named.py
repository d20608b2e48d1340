"""The name of an operator: as `Named`, and in its options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self, cast

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


class WithName:
    """An option with a `name`."""

    __slots__ = ()

    def with_name(self, name: str | None) -> Self:
        """Name the operator's node, and the topics and stores that it needs."""
        option: Any = self
        return cast("Self", replace(option, name=name))


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
