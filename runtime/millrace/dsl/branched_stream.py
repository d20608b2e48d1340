"""`BranchedKStream`: a stream while it is being split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millrace.checks import Suggesting, callback, hint_for, mistake, wrong
from millrace.dsl.graph.nodes import ProcessorStep
from millrace.dsl.processors import stateless

if TYPE_CHECKING:
    from millrace.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")

BRANCH = "KSTREAM-BRANCH-"


@dataclass(frozen=True, slots=True)
class Branched(Suggesting, Generic[K, V]):
    """What happens to one branch: a name, a function that turns it into another stream, or one that consumes it."""

    name: str | None = None
    function: Callable[[KStream[K, V]], KStream[K, V] | None] | None = None
    """Its return value is added to the result of the split under the branch's name; with None the branch is left out."""
    consumer: Callable[[KStream[K, V]], object] | None = None
    """Consumes the branch, which is then left out of the result of the split."""

    def __post_init__(self) -> None:
        for parameter, given in (("function", self.function), ("consumer", self.consumer)):
            if given is not None:
                callback(given, parameter, "stream")

    @classmethod
    def as_(cls, name: str) -> Branched[Any, Any]:
        """Name the branch."""
        return cls(name)

    @classmethod
    def with_function(
        cls, function: Callable[[KStream[K, V]], KStream[K, V] | None], name: str | None = None
    ) -> Branched[K, V]:
        """Add the stream that the function returns to the result."""
        return cls(name, function)

    @classmethod
    def with_consumer(cls, consumer: Callable[[KStream[K, V]], object], name: str | None = None) -> Branched[K, V]:
        """Pass the branch to a function, and leave it out of the result."""
        return cls(name, consumer=consumer)

    def with_name(self, name: str | None) -> Branched[K, V]:
        """Name the branch."""
        return replace(self, name=name)


class BranchedKStream(Suggesting, Generic[K, V]):
    """Made by `KStream.split`; finish it with `default_branch` or `no_default_branch`, which return the branches by name.

    A branch is called `<name of the split><name of the branch>`. Branches without a name are numbered from 1; the default
    branch is 0.
    """

    def __init__(self, stream: KStream[K, V], name: str | None) -> None:
        self._stream = stream
        self._graph = stream._graph  # noqa: SLF001 (part of the same facade)
        self._name = self._graph.names.processor(BRANCH, name)
        self._predicates: list[Callable[[K, V], Any]] = []
        self._children: list[str] = []
        self._branches: dict[str, KStream[K, V]] = {}
        self._has_default = False
        self._node = ProcessorStep(self._name, stateless.branching(self._predicates, self._children))
        self._graph.add(stream._node, self._node)  # noqa: SLF001

    def __repr__(self) -> str:
        return f"BranchedKStream({self._name}, {self._node.origin}, branches {', '.join(self._branches) or 'none'})"

    def branch(
        self, predicate: Callable[[K, V], object], branched: Branched[K, V] | str | None = None
    ) -> BranchedKStream[K, V]:
        """Send records for which the predicate is true to a new branch, unless an earlier branch has taken them.

        Args:
            predicate: gets key and value.
            branched: the branch's name, and what happens to it; a string is a name.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     branches = words.split("b-").branch(lambda key, value: len(value) < 3, "short").default_branch("long")
            ...     return branches["b-short"].map_values(str.upper).merge(branches["b-long"])
            >>> run(build, "to", "stream")
            [(None, 'TO'), (None, 'stream')]
        """
        callback(predicate, "predicate", "key, value")
        self._add(branched, len(self._predicates) + 1)
        self._predicates.append(predicate)
        return self

    def default_branch(self, branched: Branched[K, V] | str | None = None) -> dict[str, KStream[K, V]]:
        """Send all other records to one more branch, and return the branches by name.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     return words.split("b-").branch(lambda key, value: len(value) < 3).default_branch()["b-0"]
            >>> run(build, "to", "stream")
            [(None, 'stream')]
        """
        self._add(branched, 0)
        self._has_default = True
        return self._branches

    def no_default_branch(self) -> dict[str, KStream[K, V]]:
        """Drop all other records, and return the branches by name.

        Example:
            >>> from millrace.testing.examples import run
            >>> def build(words):
            ...     return words.split("b-").branch(lambda key, value: len(value) < 3).no_default_branch()["b-1"]
            >>> run(build, "to", "stream")
            [(None, 'to')]
        """
        return self._branches

    def _add(self, branched: Branched[K, V] | str | None, number: int) -> None:
        if self._has_default:
            raise mistake(
                f"Split {self._name} already has its default branch, which takes all other records; add it last"
            )
        if branched is not None and not isinstance(branched, Branched | str):
            raise wrong("branched", "a Branched or the branch's name", branched, hint_for(branched, Branched))
        options: Branched[K, V] = Branched(branched) if isinstance(branched, str) else branched or Branched()
        suffix = options.name if options.name is not None else str(number)
        name = self._graph.names.processor(BRANCH, self._name, suffix)
        self._children.append(name)
        node = ProcessorStep(name, stateless.pass_through())
        self._graph.add(self._node, node)
        stream = self._stream._same_types(node)  # noqa: SLF001
        if options.function is not None:
            result = options.function(stream)
            if result is not None:
                self._branches[name] = result
        elif options.consumer is not None:
            options.consumer(stream)
        else:
            self._branches[name] = stream
