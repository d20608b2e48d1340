"""What is known about an application: its objects as the API returns them, and a few views of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from millrace_operator.children.naming import COMPONENT_LABEL
from millrace_operator.model import Object, labels_of

_INITIAL_STATUS: Object = {}
_AT_REST = frozenset({"Suspended", "ScaledToZero"})
"""Reasons why an application is ready though nothing runs."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One `StreamsApp` and everything that belongs to it, at one moment."""

    now: datetime
    app: Object
    stateful_set: Object | None = None
    pods: tuple[Object, ...] = ()
    """The application's pods and those of its plan Jobs."""
    claims: tuple[Object, ...] = ()
    jobs: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    """Events about any of these, the newest last."""
    unreadable: tuple[str, ...] = ()
    """What the user may not read, in plain words."""

    @property
    def name(self) -> str:
        """The application's name."""
        return str(self.app["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.app["metadata"]["namespace"])

    @property
    def subject(self) -> str:
        """What findings about the resource itself are about."""
        return f"StreamsApp {self.name}"

    @property
    def spec(self) -> Object:
        """Its spec as the user wrote it."""
        spec: Object = self.app.get("spec") or {}
        return spec

    @property
    def status(self) -> Object:
        """Its status; empty before the operator has seen it."""
        return self.app.get("status") or _INITIAL_STATUS

    @property
    def replicas(self) -> int:
        """How many replicas the spec wants."""
        return int(self.spec.get("replicas", 1))

    def condition(self, kind: str) -> Object | None:
        """Return a condition of the application."""
        return next((item for item in self.status.get("conditions", ()) if item["type"] == kind), None)

    @property
    def processes(self) -> bool:
        """Whether it is processing: it is ready, and not merely because it has nothing to do."""
        condition = self.condition("Ready")
        return self.is_condition("Ready", "True") and condition is not None and condition["reason"] not in _AT_REST

    def is_condition(self, kind: str, status: str) -> bool:
        """Return whether a condition has a status."""
        condition = self.condition(kind)
        return condition is not None and condition["status"] == status

    def runtime_pods(self) -> Iterator[Object]:
        """Yield the pods that process records."""
        return (pod for pod in self.pods if labels_of(pod).get(COMPONENT_LABEL) != "plan")

    def plan_pods(self) -> Iterator[Object]:
        """Yield the pods of plan Jobs."""
        return (pod for pod in self.pods if labels_of(pod).get(COMPONENT_LABEL) == "plan")

    def events_about(self, kind: str, name: str, *reasons: str) -> Iterator[Object]:
        """Yield the events about an object, the newest first.

        Args:
            kind: of the object.
            name: of the object.
            *reasons: those that are of interest; every warning if none is given.
        """
        for event in reversed(self.events):
            about = event["involvedObject"]
            if (about.get("kind"), about.get("name")) != (kind, name):
                continue
            if event.get("reason") in reasons or (not reasons and event.get("type") == "Warning"):
                yield event

    def age_seconds(self, timestamp: str | None) -> float:
        """Return how long ago a time of the API was; 0 if there is none."""
        if timestamp is None:
            return 0
        return (self.now - datetime.fromisoformat(timestamp)).total_seconds()
