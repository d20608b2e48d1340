"""Asking the brokers about many things at once, with a deadline: again what may pass, never what does not.

confluent-kafka's AdminClient answers each item with a future that fails for what may pass (a leader moves, a controller is
elected) as for what does not. `ask` repeats the former until the deadline and raises the latter with the item's name.

librdkafka's admin client keeps asking the leaders, with the leader epochs, that it knows; after an error only a new metadata
request makes it look again. So whoever asks partitions' leaders goes by `ask_leaders`.

A thread that is to end does not wait until a deadline that may be minutes away: see `give_up_when`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient

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
"""How long one request may take; with a deadline that is later it is repeated."""
FORBIDDEN: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Codes that say: this principal may not."""

_PAUSE_S: Final = 0.1
_PASSING: Final = frozenset(
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
        KafkaError._WAIT_COORD,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._NOENT,  # noqa: SLF001 (no leader is known yet)
    }
)

_Item = TypeVar("_Item")
_patience = threading.local()
_LOOK_EVERY_S: Final = 0.5


def give_up_when(given_up: Callable[[], bool]) -> None:
    """Have requests of the calling thread fail with a StreamsTimeoutError as soon as this is true, whatever their deadlines."""
    _patience.given_up = given_up


def given_up() -> bool:
    """Whether the calling thread waits for brokers no more."""
    check: Callable[[], bool] | None = getattr(_patience, "given_up", None)
    return check is not None and check()


def _result(future: Future[Any], what: str) -> Any:
    while True:
        try:
            return future.result(_LOOK_EVERY_S)
        except TimeoutError:
            if future.done():
                raise
            if given_up():
                raise StreamsTimeoutError(
                    f"Cannot {what}: the thread is to end, and waits for brokers no more"
                ) from None


def ask(
    what: str,
    request: Callable[[Collection[_Item]], Mapping[_Item, Future[Any]]],
    items: Collection[_Item],
    timeout_s: float,
    final: Mapping[int, Any] | None = None,
) -> dict[_Item, Any]:
    """Ask about items, again for those whose error may pass, until each has its answer.

    Args:
        what: What is done to an item, for messages.
        request: Sends one request about items.
        items: What to ask about.
        timeout_s: How long to go on asking.
        final: Error codes that are answers, and what they stand for.

    Raises:
        AuthorizationError: The principal may not.
        StreamsTimeoutError: An item has no answer in time.
        StreamsError: The brokers refuse.
    """
    deadline = time.monotonic() + timeout_s
    answers: dict[_Item, Any] = {}
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
                elif code in _PASSING or reason.retriable():
                    problem = reason.str()
                else:
                    raise StreamsError(f"The brokers refuse to {what} {item}: {reason.str()}") from error
        left = [item for item in left if item not in answers]
        if left:
            pause(deadline, f"{what} {', '.join(map(str, left[:3]))}", problem)
            log.info("Asking the brokers again to %s %d items: %s", what, len(left), problem)
    return answers


def ask_leaders(
    what: str,
    request: Callable[[list[TopicPartition]], Mapping[ClientTopicPartition, Future[Any]]],
    partitions: Collection[TopicPartition],
    timeout_s: float,
    admin: AdminClient,
) -> dict[TopicPartition, Any]:
    """Ask the leaders of partitions as `ask` does, looking for new leaders before asking again.

    Raises:
        AuthorizationError: The principal may not.
        StreamsTimeoutError: A partition has no answer in time.
        StreamsError: The brokers refuse.
    """
    deadline = time.monotonic() + timeout_s
    asked = False

    def send(wanted: Collection[TopicPartition]) -> Mapping[TopicPartition, Future[Any]]:
        nonlocal asked
        if asked:
            with contextlib.suppress(KafkaException):  # without metadata the old leaders are asked once more
                admin.list_topics(timeout=request_timeout(deadline))
        asked = True
        return {TopicPartition(tp.topic, tp.partition): future for tp, future in request(list(wanted)).items()}

    return ask(what, send, partitions, timeout_s)


def request_timeout(deadline: float) -> float:
    """Return how many seconds one request may take, if all is to be done by a deadline (monotonic seconds)."""
    return min(REQUEST_TIMEOUT_S, max(0.1, deadline - time.monotonic()))


def pause(deadline: float, what: str, problem: object) -> None:
    """Wait a moment before asking again.

    Raises:
        StreamsTimeoutError: The deadline (monotonic seconds) has passed; says what was tried, and the last problem.
    """
    if time.monotonic() >= deadline or given_up():
        raise StreamsTimeoutError(f"Cannot {what} in time: {problem}")
    time.sleep(_PAUSE_S)


def forbidden(what: str, item: object, error: KafkaException) -> AuthorizationError:
    """Return the error of a principal that may not do something."""
    return AuthorizationError(f"The principal may not {what} {item}: {error.args[0].str()}; grant it by an ACL")
