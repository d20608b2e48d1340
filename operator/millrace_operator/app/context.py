"""What passes have in common: the cluster as it is known, and how it and the brokers are reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.plan import reset
from millrace_operator.app.refs import Ref
from millrace_operator.cluster.act import Hands
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.events import Recorder
from millrace_operator.cluster.instances import Instances
from millrace_operator.cluster.observe import Outputs
from millrace_operator.cluster.requests import Requests
from millrace_operator.model import Desired, KafkaState, Key, Object
from millrace_operator.resets.reconciler import Question


class Kafka(Protocol):
    """The hands on Kafka, as passes need them."""

    def observe(self, desired: Desired, objects: dict[Key, Object]) -> KafkaState:
        """Ask an application's brokers; takes seconds if they do not answer, and does not raise."""

    def observe_for_reset(self, desired: Desired, question: Question) -> reset.ObservedApplication:
        """Ask what must be known for a reset.

        Raises:
            StreamsError: The brokers do not tell.
        """

    def act(self, desired: Desired, action: Any) -> None:
        """Carry out an action.

        Raises:
            StreamsError: It could not be done.
        """

    def forget(self, ref: Ref) -> None:
        """Close what was kept for an application that is gone."""

    def close(self) -> None:
        """Close everything."""


@dataclass(slots=True)
class Cluster:
    """What the operator knows of the cluster, and how it reaches it."""

    requests: Requests
    resources: Cache
    children: Cache
    instances: Instances
    hands: Hands
    outputs: Outputs
    recorder: Recorder
    kafka: Kafka
    operator_namespace: str
    expandable: Callable[[dict[Key, Object]], bool | None] = lambda _: None
    """Whether the claims among an app's objects may grow."""
    pod_monitors: bool = False
