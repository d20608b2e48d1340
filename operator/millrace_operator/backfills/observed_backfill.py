"""What a pass over a backfill observes: the application, its brokers, and the Spark pods of the attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millrace.manifest import StreamsAppSpec
from millrace.plan.reset import ActiveMember
from millrace_operator.backfills.driver_log import Progress
from millrace_operator.model import Object
from millrace_operator.reconcile.operation_context import ObservedOperation

Published = Literal["Nothing", "Parts", "Everything"]
"""What the attempts of a backfill have published, as the brokers know."""


@dataclass(frozen=True, slots=True)
class SparkPod:
    """A driver or an executor of any attempt."""

    name: str
    is_driver: bool
    attempt: int
    lives: bool
    """Whether it may still write."""
    trouble: str = ""
    """What keeps it from starting, if anything does."""
    has_started: bool = True
    """Whether its program has been started."""
    ended_at: str | None = None
    """When its program ended, as Kubernetes writes it; None if it has not, or nobody has seen it end."""


@dataclass(frozen=True, slots=True)
class ObservedBackfill(ObservedOperation):
    """Everything that a pass over a backfill has observed."""

    working_since: float = 0.0
    """When this operator began to work, seconds since the epoch: patience with anything begins no earlier."""
    members: tuple[ActiveMember, ...] | None = None
    """The members of its consumer group; None if the brokers were not asked or do not answer."""
    published: Published | None = None
    """What its attempts have published; None if the brokers were not asked or do not answer."""
    served: str | None = None
    """The API version of the SparkApplications that the cluster serves; None if it serves none."""
    unlisted: str | None = None
    """Why the SparkApplications or the pods of a backfill that has not begun cannot be listed; None if they can."""
    first_spec: StreamsAppSpec | None = None
    """The application's spec of the first attempt, if it has another one now; None as well if that is not known any more."""
    refusal: str | None = None
    """Why the API server has just refused an object of the next attempt."""
    refusal_is_final: bool = False
    """Whether it would refuse it another time too."""
    applications: tuple[Object, ...] = ()
    """The SparkApplications of all attempts."""
    pods: tuple[SparkPod, ...] = ()
    progress: Progress | None = None
    """The last report of the latest attempt's job."""
    log_is_there: bool = True
    """Whether the driver of that job has a pod, whose log it is."""
    log_problem: str = ""
    """Why the log could not be read although it is there; empty if it was read."""
    last_words: str = ""
    """The end of its driver's log, once it has failed."""
    repaired: bool = False
    """Whether another backfill has succeeded since this one has ended, so that no half state is left of it."""
    awaited: bool = False
    """Whether another backfill has left half a state, was deleted, and is kept until it has seen that this one has succeeded."""
