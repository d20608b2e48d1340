"""Connections to Kafka clusters, opened once for all applications that reach the same brokers in the same way.

A connection costs threads and memory, and there may be a pass every second: so it stays open while in use, and is found by a
keyed hash of all its settings. New credentials or addresses need a new one; the old one closes with its last application.
If each application has its own credentials there may be a thousand of them: only the most recently used stay open.

Brokers that could not be reached are retried after a delay, which grows. When several credentials in a row have not
reached the brokers at the same addresses, these count as down for all, and only one login at a time tries them. One application's
fault hides them from nobody: brokers that refuse a password are up, and a single success makes them available to all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.errors import AuthenticationError, BrokerUnreachableError, StreamsError
from millrace.kafka.clients import open_admin
from millrace.kafka.connection_check import check_connection
from millrace.kafka.group_admin import GroupAdmin
from millrace_operator.kafka.client_config import client_settings

CONNECT_TIMEOUT_S: Final = 3.0
RETRY_AFTER_S: Final = 3.0
LONGEST_RETRY_S: Final = 30.0
MOST_OPEN: Final = 32
"""How many idle connections stay open; each has about five threads."""
IDLE_S: Final = 90.0
"""After how long an idle connection is closed."""
_FAILED_FOR_ALL: Final = 3
"""How many credentials in a row must fail to reach the brokers before these are considered down."""


class AdminConnection:
    """The clients of one cluster; several threads may use them."""

    def __init__(self, config: StreamsConfig, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Connect.

        Raises:
            BrokerUnreachableError: No broker answered.
            AuthenticationError: The brokers refuse the credentials.
            ConfigError: The settings are not valid.
        """
        settings = client_settings(config)
        check_connection(settings, timeout_s)
        self.admin: AdminClient = open_admin(settings.admin())
        self.groups = GroupAdmin(settings, timeout_s)
        self.opened_at = time.monotonic()

    def close(self) -> None:
        """Close them."""
        self.groups.__exit__(None, None, None)


@dataclass(slots=True, eq=False)
class _Shared:
    connection: AdminConnection
    used_at: float
    users: int = 0
    retired: bool = False


@dataclass(slots=True, eq=False)
class _Failures:
    """How many times in a row something has failed, and when it may be retried."""

    count: int = 0
    error: StreamsError | None = None
    retry_at: float = float("-inf")

    def add(self, error: StreamsError, now: float) -> None:
        """Count a failure; failures before the next retry is due count as one."""
        self.count += now >= self.retry_at
        self.error = error
        self.retry_at = now + min(RETRY_AFTER_S * 2.0 ** min(self.count - 1, 10), LONGEST_RETRY_S)

    def clear(self) -> None:
        """Reset the count."""
        self.count, self.error, self.retry_at = 0, None, float("-inf")


@dataclass(slots=True, eq=False)
class _Cluster:
    """The brokers at some addresses, whatever the credentials."""

    addresses: str
    logins: int = 0
    missed_by: set[bytes] = field(default_factory=set)
    """The logins that have not reached them since the last success."""
    failures: _Failures = field(default_factory=_Failures)
    """The failures since the brokers were considered down."""
    trying: bool = False
    """Whether somebody is checking if they are back."""

    def is_there(self) -> None:
        """Note that the brokers have answered."""
        self.missed_by.clear()
        self.failures.clear()

    def missed(self, fingerprint: bytes, now: float) -> None:
        """Note that a login has not reached them."""
        self.missed_by.add(fingerprint)
        if len(self.missed_by) >= _FAILED_FOR_ALL:
            away = (
                f"No broker of bootstrap.servers={self.addresses} answers: several applications have tried, each with its "
                "own credentials. Check that the brokers run, that host and port are right, and that no firewall, "
                "network policy or DNS problem is in the way"
            )
            self.failures.add(BrokerUnreachableError(away), now)


@dataclass(slots=True, eq=False)
class _Login:
    """One way to reach a cluster: addresses, credentials, and all other settings."""

    fingerprint: bytes
    cluster: _Cluster
    applications: set[str] = field(default_factory=set)
    opening: threading.Lock = field(default_factory=threading.Lock)
    shared: _Shared | None = None
    failures: _Failures = field(default_factory=_Failures)


class Connections:
    """Gives applications their connections; safe to use from several threads.

    Args:
        open_connection: Opens one; `AdminConnection` unless a test counts them.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        open_connection: Callable[[StreamsConfig], AdminConnection] = AdminConnection,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = open_connection
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._clusters: dict[str, _Cluster] = {}
        """By addresses."""
        self._logins: dict[bytes, _Login] = {}
        self._of_application: dict[str, bytes] = {}
        self._open_logins: dict[_Login, None] = {}
        """Those with a connection; the one used least recently comes first."""

    @contextlib.contextmanager
    def lease(self, uid: str, config: StreamsConfig, *, patient: bool = False) -> Iterator[AdminConnection]:
        """Lend an application its connection; it stays open until it is given back.

        Args:
            uid: The application's.
            config: How its brokers are reached.
            patient: Whether brokers that have just failed are retried at once.

        Raises:
            StreamsError: The brokers cannot be reached, as `AdminConnection` says.
        """
        login = self._login_of(uid, config)
        with login.opening:
            shared = self._take(login) or self._connect(login, config, patient=patient)
        try:
            yield shared.connection
        finally:
            self._give_back(login, shared)

    def drop(self, connection: AdminConnection) -> None:
        """Stop using a connection that no longer works; it closes when its last user is done."""
        with self._lock:
            found = (login for login in self._open_logins if login.shared and login.shared.connection is connection)
            login = next(found, None)
            idle = None if login is None else self._retire(login)
        _close(idle)

    def forget(self, uid: str) -> None:
        """Close the connections that only this application used."""
        with self._lock:
            idle = self._leave(uid)
        _close(idle)

    def close(self) -> None:
        """Close all."""
        with self._lock:
            idle = [self._retire(login) for login in list(self._open_logins)]
            self._logins.clear()
            self._clusters.clear()
            self._of_application.clear()
        _close(*idle)

    def __len__(self) -> int:
        """Return how many connections are open."""
        with self._lock:
            return len(self._open_logins)

    def _login_of(self, uid: str, config: StreamsConfig) -> _Login:
        fingerprint = self._fingerprint(config)
        addresses = ",".join(sorted(config.bootstrap_servers))
        with self._lock:
            idle = None if self._of_application.get(uid) == fingerprint else self._leave(uid)
            login = self._logins.get(fingerprint)
            if login is None:
                cluster = self._clusters.setdefault(addresses, _Cluster(addresses))
                cluster.logins += 1
                login = self._logins[fingerprint] = _Login(fingerprint, cluster)
            login.applications.add(uid)
            self._of_application[uid] = fingerprint
        _close(idle)
        return login

    def _fingerprint(self, config: StreamsConfig) -> bytes:
        given = config.model_dump(mode="json", exclude={"application_id"})
        return hashlib.blake2b(json.dumps(given, sort_keys=True).encode(), key=self._key, digest_size=32).digest()

    def _leave(self, uid: str) -> AdminConnection | None:
        fingerprint = self._of_application.pop(uid, None)
        login = None if fingerprint is None else self._logins.get(fingerprint)
        if fingerprint is None or login is None:
            return None
        login.applications.discard(uid)
        if login.applications:
            return None
        del self._logins[fingerprint]
        login.cluster.logins -= 1
        if not login.cluster.logins:
            self._clusters.pop(login.cluster.addresses, None)
        return self._retire(login)

    def _take(self, login: _Login) -> _Shared | None:
        with self._lock:
            if login.shared is not None:
                login.shared.users += 1
            return login.shared

    def _connect(self, login: _Login, config: StreamsConfig, *, patient: bool) -> _Shared:
        self._check_may_try(login, patient=patient)
        try:
            connection = self._open(config)
        except StreamsError as error:
            with self._lock:
                self._note_failure(login, error)
            raise
        finally:
            login.cluster.trying = False
        shared = _Shared(connection, self._clock(), users=1)
        with self._lock:
            login.failures.clear()
            login.cluster.is_there()
            if self._logins.get(login.fingerprint) is login:
                login.shared = shared
                self._open_logins[login] = None
            else:
                shared.retired = True  # the application was forgotten meanwhile
        return shared

    def _check_may_try(self, login: _Login, *, patient: bool) -> None:
        """Check that the brokers are not considered down.

        Raises:
            StreamsError: They are; the last error of this login, or of another one.
        """
        cluster, now = login.cluster, self._clock()
        with self._lock:
            away = cluster.failures.error is not None
            waits = now < max(login.failures.retry_at, cluster.failures.retry_at) or (away and cluster.trying)
            if waits and not patient:
                known = login.failures.error or cluster.failures.error
                assert known is not None
                raise known.with_traceback(None)
            cluster.trying = away

    def _note_failure(self, login: _Login, error: StreamsError) -> None:
        now = self._clock()
        login.failures.add(error, now)
        if isinstance(error, BrokerUnreachableError):
            login.cluster.missed(login.fingerprint, now)
        elif isinstance(error, AuthenticationError):
            login.cluster.is_there()

    def _give_back(self, login: _Login, shared: _Shared) -> None:
        with self._lock:
            shared.users -= 1
            shared.used_at = self._clock()
            idle = [shared.connection] if shared.retired and not shared.users else []
            if login.shared is shared:
                self._open_logins[login] = self._open_logins.pop(login)
            idle += self._too_many()
        _close(*idle)

    def _too_many(self) -> list[AdminConnection]:
        """Remove and return the surplus idle connections and those unused for too long."""
        latest = self._clock() - IDLE_S
        unused = [login for login in self._open_logins if login.shared is not None and not login.shared.users]
        excess = len(self._open_logins) - MOST_OPEN
        old = [
            login
            for number, login in enumerate(unused)
            if number < excess or (login.shared is not None and login.shared.used_at <= latest)
        ]
        return [connection for login in old if (connection := self._retire(login)) is not None]

    def _retire(self, login: _Login) -> AdminConnection | None:
        """Remove a login's connection, and return it if it is idle."""
        shared, login.shared = login.shared, None
        self._open_logins.pop(login, None)
        if shared is None:
            return None
        shared.retired = True
        return None if shared.users else shared.connection


def _close(*connections: AdminConnection | None) -> None:
    for connection in connections:
        if connection is not None:
            connection.close()
