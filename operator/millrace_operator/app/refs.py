"""What waits in the queue: the name of a resource, never what was seen of it."""

from __future__ import annotations

from typing import NamedTuple


class Ref(NamedTuple):
    """One resource that the operator serves."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"
