"""How a stream is split, and how it is printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from millrace.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Branched(Generic[K, V]):
    """What becomes of one branch: a name, a function that turns it into another stream, or one that consumes it."""

    name: str | None = None
    function: Callable[[KStream[K, V]], KStream[Any, Any] | None] | None = None
    """Its result goes into the result of the split under the branch's name; None keeps the branch out."""
    consumer: Callable[[KStream[K, V]], Any] | None = None
    """Uses the branch up: it is not in the result of the split."""

    @classmethod
    def as_(cls, name: str) -> Branched[Any, Any]:
        """Name the branch."""
        return cls(name)

    @classmethod
    def with_function(
        cls, function: Callable[[KStream[K, V]], KStream[Any, Any] | None], name: str | None = None
    ) -> Branched[K, V]:
        """Put what the function makes of the branch into the result."""
        return cls(name, function)

    @classmethod
    def with_consumer(cls, consumer: Callable[[KStream[K, V]], Any], name: str | None = None) -> Branched[K, V]:
        """Hand the branch to a function, and leave it out of the result."""
        return cls(name, consumer=consumer)

    def with_name(self, name: str | None) -> Branched[K, V]:
        """Name the branch."""
        return replace(self, name=name)


@dataclass(frozen=True, slots=True)
class Printed(Generic[K, V]):
    """Where and how records are printed."""

    path: Path | None = None
    """None: standard output."""
    label: str | None = None
    mapper: Callable[[K, V], str] | None = None
    name: str | None = None

    @classmethod
    def to_sys_out(cls) -> Printed[Any, Any]:
        """Print to standard output."""
        return cls()

    @classmethod
    def to_file(cls, path: str | Path) -> Printed[Any, Any]:
        """Append to a file."""
        return cls(Path(path))

    def with_label(self, label: str) -> Printed[K, V]:
        """Begin every line with `[label]: ` instead of the name of the node before."""
        return replace(self, label=label)

    def with_key_value_mapper(self, mapper: Callable[[K, V], str]) -> Printed[K, V]:
        """Print what the function returns instead of key and value."""
        return replace(self, mapper=mapper)

    def with_name(self, name: str | None) -> Printed[K, V]:
        """Name the node."""
        return replace(self, name=name)
