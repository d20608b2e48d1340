"""Opens librdkafka's clients, and filters their log.

While brokers are down librdkafka logs the same line many times a second; here it appears once every ten seconds.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from millrace.config import ClientConfig
from millrace.config_providers import Hidden
from millrace.deadline import Deadline
from millrace.errors import ConfigError, StreamsError
from millrace.kafka.security import HIDDEN, ClientProperties

__all__ = ["ClosableAdmin", "librdkafka_log", "open_admin", "open_consumer", "open_producer"]

_REPEAT_INTERVAL_S: Final = 10.0
_VARIABLE_PART: Final = re.compile(r" ?\(after .*?\)|, \d+ identical error\(s\) suppressed")
_MOST_KINDS: Final = 1_000
_OWN_REFERENCES: Final = 2
"""The list's and the one of the call that counts them."""
_PAUSE_S: Final = 0.01
_FREE_ATTEMPTS: Final = 1_000
_LOOK_UP_S: Final = 0.5
"""How long looking up new topics may take; librdkafka itself does so once a second, as long as there are any."""
_LOOK_UP_PAUSE_S: Final = 10.0
"""How long no topic is looked up after brokers did not answer in time."""


class RepeatFilter(logging.Filter):
    """Lets each message through once per interval, with the number of repetitions that were dropped since.

    Messages that differ only in how long a connection had lasted count as the same.

    Args:
        interval_s: How long repetitions of a message are dropped.
        clock: Returns the time in seconds.
    """

    def __init__(self, interval_s: float = _REPEAT_INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record, after adding the number of repetitions dropped before it to its message."""
        kind, now = _VARIABLE_PART.sub("", record.getMessage()), self._clock()
        with self._lock:
            at, left_out = self._passed.get(kind, (-self._interval_s, 0))
            if now - at < self._interval_s:
                self._passed[kind] = at, left_out + 1
                return False
            if len(self._passed) >= _MOST_KINDS:
                self._passed.clear()
            self._passed[kind] = now, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} [and {left_out} times before]", ()
        return True


librdkafka_log: Final = logging.getLogger("millrace.kafka.librdkafka")
"""The log of all clients."""
librdkafka_log.addFilter(RepeatFilter())


def open_consumer(settings: ClientConfig) -> Consumer:
    """Open a consumer that logs to `librdkafka_log`.

    Raises:
        ConfigError: librdkafka does not take the settings.
    """
    return _open(_Consumer, settings)


def open_producer(settings: ClientConfig) -> Producer:
    """Open a producer that logs to `librdkafka_log`.

    Raises:
        ConfigError: librdkafka does not take the settings.
    """
    return _open(_Producer, settings)


def open_admin(settings: ClientConfig) -> AdminClient:
    """Open an admin client that logs to `librdkafka_log`.

    Raises:
        ConfigError: librdkafka does not take the settings.
    """
    return _open(AdminClient, settings)


class ClosableAdmin(AdminClient if TYPE_CHECKING else object):  # type: ignore[misc]
    """An admin client that ends with `close`, although others may still hold it: the library's ends when it is freed.

    Ending it directly could free it during a call of another thread. So this handle drops its reference: a running call
    keeps the client until it returns, and each later call is an error.
    """

    def __init__(self, client: AdminClient) -> None:
        self._client: AdminClient | None = client

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the client.

        Raises:
            StreamsError: it is closed.
        """
        client = self._client
        if client is None:
            raise StreamsError("The client that asks the brokers is closed, as the application has ended")
        return getattr(client, name)

    def close(self) -> None:
        """Drop the client, with its native threads; may be called more than once."""
        self._client = None


class _Consumer(Consumer):
    """The library's, plus weak references, a quick start of new topics, and credentials that another thread may set meanwhile.

    The library allows one call at a time, so that other thread would wait for as long as the owner keeps polling.
    """

    _renewed: tuple[str, str] | None = None
    _known_topics: frozenset[str] = frozenset()
    _look_up_again = Deadline(0.0)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Assign as the library does, but look up topics that are new to this client now, not within a second.

        While brokers are slow, only one of many calls waits for them.
        """
        super().incremental_assign(partitions)
        if not self._look_up_again.passed:
            return
        deadline = Deadline(_LOOK_UP_S)
        for topic in sorted({partition.topic for partition in partitions} - self._known_topics):
            try:
                super().list_topics(topic, deadline.left_s())
            except KafkaException as error:
                librdkafka_log.info("%s is looked up later: %s", topic, error)
                self._look_up_again = Deadline(_LOOK_UP_PAUSE_S)
                return
            self._known_topics |= {topic}

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use other credentials from the next poll on."""
        self._renewed = (username, password)

    def poll(self, timeout: float = -1) -> Message | None:
        """Poll as the library does, with the latest credentials."""
        if self._renewed is not None:
            self._renew(*self._renewed)
        return super().poll(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Consume as the library does, with the latest credentials."""
        if self._renewed is not None:
            self._renew(*self._renewed)
        return super().consume(num_messages, timeout)

    def _renew(self, username: str, password: str) -> None:
        self._renewed = None
        super().set_sasl_credentials(username, password)


class _Producer(Producer):
    """The library's, plus weak references, and it ends in a separate thread.

    librdkafka waits for its own threads when a client is freed. If a coordinator left the cluster during a commit, one of
    them may never end, and would block the thread that frees the client: the stream thread, or the one that collects
    garbage.
    """

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with contextlib.suppress(RuntimeError):  # too late to start a thread
                _thread.start_new_thread(_free, ([self],))


def _free(client: list[_Producer]) -> None:
    """Free the client in the list once nobody else has it; otherwise its last holder frees it."""
    never = threading.Event()  # waits in real time, even if the process has a simulated clock
    for _ in range(_FREE_ATTEMPTS):
        if sys.getrefcount(client[0]) <= _OWN_REFERENCES:
            break
        never.wait(_PAUSE_S)
    client.clear()


_Client = TypeVar("_Client", _Consumer, _Producer, AdminClient)


def _open(client: type[_Client], settings: ClientConfig) -> _Client:
    if "oauth_cb" in settings:
        # Fetches the token that librdkafka is about to ask for; without one, the error raised here says why.
        settings["oauth_cb"]("")
    given: dict[str, Any] = {"logger": librdkafka_log, **settings}
    try:
        opened = client(given)
    except KafkaException as error:
        text = str(error.args[0].str())
        for value in settings.values():
            text = text.replace(value, HIDDEN) if isinstance(value, Hidden) and value else text
        name = client.__name__.lower().strip("_")
        raise ConfigError(f"The settings of the {name} are not valid: {text}") from None
    if isinstance(settings, ClientProperties) and settings.on_open is not None:
        settings.on_open(opened)
    return opened
