"""Admin requests about many items at once, with a deadline: transient errors are retried, others raised.

confluent-kafka's AdminClient answers each item with a future, which fails in the same way for transient errors (a leader moves, a
controller is elected) and for permanent ones. `ask` retries the former until the deadline and raises the latter with the item's
name.

librdkafka's admin client keeps using the leaders and leader epochs it has cached; after an error, only a new metadata
request makes it look again. `ask_leaders` sends that request, and is for all requests to partition leaders.

A thread that is shutting down need not wait for a deadline that may be minutes away: see `give_up_when`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

from millrace.deadline import Deadline
from millrace.errors import AuthorizationError, StreamsError, StreamsTimeoutError
from millrace.records import TopicPartition

__all__ = [
    "FORBIDDEN",
    "REQUEST_TIMEOUT_S",
    "ask",
    "ask_leaders",
    "forbidden",
    "give_up_when",
    "given_up",
    "pause",
    "request_timeout",
]

log = logging.getLogger("millrace.kafka.admin")

REQUEST_TIMEOUT_S: Final = 15.0
"""How long a single request may take; it is retried until the deadline."""
FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Error codes for a missing ACL."""

_PAUSE_S: Final = 0.1
_TRANSIENT: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.NOT_CONTROLLER,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._DESTROY_BROKER,  # noqa: SLF001 (the broker asked has left the cluster)
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._NOENT,  # noqa: SLF001 (no leader known yet)
    }
)

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")
_LOOK_EVERY_S: Final = 0.5


class _Patience(threading.local):
    """Tells a thread when to stop waiting for brokers."""

    given_up: Callable[[], bool] | None = None


_patience = _Patience()


def give_up_when(given_up: Callable[[], bool]) -> None:
    """Make requests of the calling thread fail with a StreamsTimeoutError once this returns true, before their deadlines."""
    _patience.given_up = given_up


def given_up() -> bool:
    """Whether the calling thread has stopped waiting for brokers."""
    return _patience.given_up is not None and _patience.given_up()


def _result(future: Future[_Answer], what: str) -> _Answer:
    while True:
        try:
            return future.result(_LOOK_EVERY_S)
        except TimeoutError:
            if future.done():
                raise
            if given_up():
                raise StreamsTimeoutError(
                    f"Cannot {what}: this thread is shutting down and no longer waits for brokers"
                ) from None


def ask(
    what: str,
    request: Callable[[Collection[_Item]], Mapping[_Item, Future[_Answer]]],
    items: Collection[_Item],
    timeout_s: float,
    final: Mapping[int, _Answer] | None = None,
) -> dict[_Item, _Answer]:
    """Send a request about items and retry it for those with transient errors, until every item is answered.

    Args:
        what: What the request does to an item, for messages.
        request: Sends one request.
        items: The items to ask about.
        timeout_s: How long to keep retrying.
        final: Error codes that count as answers, with the value each stands for.

    Raises:
        AuthorizationError: The principal lacks an ACL.
        StreamsTimeoutError: An item was not answered in time.
        StreamsError: The brokers refused.
    """
    deadline = Deadline(timeout_s)
    answers: dict[_Item, _Answer] = {}
    left = list(items)
    while left:
        problem: str | None = None
        for item, future in request(left).items():
            try:
                answers[item] = _result(future, f"{what} {item}")
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                code = reason.code()
                if final is not None and code in final:
                    answers[item] = final[code]
                elif code in FORBIDDEN:
                    raise forbidden(what, item, error) from error
                elif code in _TRANSIENT or reason.retriable():
                    problem = reason.str()
                else:
                    raise StreamsError(f"The brokers refused to {what} {item}: {reason.str()}") from error
        left = [item for item in left if item not in answers]
        if left:
            pause(deadline, f"{what} {', '.join(map(str, left[:3]))}", problem)
            log.info("Retrying to %s %d items: %s", what, len(left), problem)
    return answers


def ask_leaders(
    what: str,
    request: Callable[[list[TopicPartition]], Mapping[ClientTopicPartition, Future[_Answer]]],
    partitions: Collection[TopicPartition],
    timeout_s: float,
    admin: AdminClient,
) -> dict[TopicPartition, _Answer]:
    """Ask the leaders of partitions as `ask` does, looking up new leaders before each retry.

    Raises:
        AuthorizationError: The principal lacks an ACL.
        StreamsTimeoutError: A partition was not answered for in time.
        StreamsError: The brokers refused.
    """
    deadline = Deadline(timeout_s)
    retrying = False

    def send(wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, Future[_Answer]]:
        nonlocal retrying
        if retrying:
            with contextlib.suppress(KafkaException):  # without new metadata, the old leaders are asked once more
                admin.list_topics(timeout=request_timeout(deadline))
        retrying = True
        return {TopicPartition(tp.topic, tp.partition): future for tp, future in request(list(wanted)).items()}

    return ask(what, send, partitions, timeout_s)


def request_timeout(deadline: Deadline) -> float:
    """Return how many seconds a single request may take so that the deadline is kept."""
    return min(REQUEST_TIMEOUT_S, deadline.left_s(at_least=0.1))


_UNREACHABLE: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})  # noqa: SLF001 (their only names)


def _told(problem: object) -> str:
    """Return a problem's description, and what to do if no broker has answered."""
    error = problem.args[0] if isinstance(problem, KafkaException) else problem
    if not isinstance(error, KafkaError):
        return str(problem)
    advice = ". Check that the brokers are running, and that host and port are right"
    return f"{error.str()}{advice if error.code() in _UNREACHABLE else ''}"


def pause(deadline: Deadline, what: str, problem: object) -> None:
    """Wait a moment before a retry.

    Raises:
        StreamsTimeoutError: The deadline has passed; the message has what was tried, and the last problem.
    """
    if deadline.passed or given_up():
        raise StreamsTimeoutError(f"Cannot {what} in time: {_told(problem)}")
    time.sleep(_PAUSE_S)


def forbidden(what: str, item: object, error: KafkaException) -> AuthorizationError:
    """Return the error for a principal that lacks an ACL."""
    return AuthorizationError(f"The principal may not {what} {item}: {error.args[0].str()}; grant it with an ACL")
