"""Connections to Kafka clusters, opened once for all applications that reach the same brokers in the same way.

A connection costs threads and memory, and hundreds of applications may share a cluster; a pass may come every second. So a
connection stays open while an application uses it, and is found by a keyed hash of all it was opened with: new credentials or
addresses make another one, and the old goes with its last application. A cluster that could not be reached is not tried again
at once, or the applications of one cluster that is down would keep the workers from those of all others.
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
from millrace.errors import StreamsError
from millrace.kafka.check import check_brokers
from millrace.kafka.clients import open_admin
from millrace.kafka.group_admin import GroupAdmin
from millrace_operator.kafka.settings import client_settings

CONNECT_TIMEOUT_S: Final = 3.0
RETRY_AFTER_S: Final = 3.0


class Connection:
    """The clients of one cluster; several threads may use them."""

    def __init__(self, config: StreamsConfig, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Connect.

        Raises:
            BrokerUnreachableError: No broker answered.
            AuthenticationError: The brokers refuse the credentials.
            ConfigError: The settings are not valid.
        """
        settings = client_settings(config)
        check_brokers(settings, timeout_s)
        self.admin: AdminClient = open_admin(settings.admin())
        self.groups = GroupAdmin(settings, timeout_s)
        self.opened_at = time.monotonic()

    def close(self) -> None:
        """Close them."""
        self.groups.__exit__(None, None, None)


@dataclass(slots=True, eq=False)
class _Shared:
    connection: Connection
    users: int = 0
    retired: bool = False


@dataclass(slots=True, eq=False)
class _Cluster:
    applications: set[str] = field(default_factory=set)
    opening: threading.Lock = field(default_factory=threading.Lock)
    shared: _Shared | None = None
    failure: StreamsError | None = None
    failed_at: float = 0.0


class Connections:
    """Gives applications their connections.

    Args:
        open_connection: Opens one; `Connection` unless a test counts them.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        open_connection: Callable[[StreamsConfig], Connection] = Connection,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = open_connection
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._clusters: dict[bytes, _Cluster] = {}

    @contextlib.contextmanager
    def lease(self, uid: str, config: StreamsConfig, *, patient: bool = False) -> Iterator[Connection]:
        """Give an application its connection for a while; it is not closed before that has passed.

        Args:
            uid: The application's.
            config: How its brokers are reached.
            patient: Whether brokers that have just failed are tried again at once.

        Raises:
            StreamsError: The brokers cannot be reached, as `Connection` says.
        """
        cluster = self._cluster_of(uid, self._fingerprint(config))
        with cluster.opening:
            shared = self._take(cluster)
            if shared is None:
                shared = self._connect(cluster, config, patient=patient)
        try:
            yield shared.connection
        finally:
            self._give_back(shared)

    def drop(self, connection: Connection) -> None:
        """Let a connection that no longer serves not be used again; it closes when its last user is done."""
        with self._lock:
            for cluster in self._clusters.values():
                if cluster.shared is not None and cluster.shared.connection is connection:
                    idle = _retire(cluster)
                    break
            else:
                return
        _close(idle)

    def forget(self, uid: str) -> None:
        """Close what only this application used."""
        with self._lock:
            idle = self._leave(uid)
        _close(*idle)

    def close(self) -> None:
        """Close all."""
        with self._lock:
            idle = [_retire(cluster) for cluster in self._clusters.values()]
            self._clusters.clear()
        _close(*idle)

    def __len__(self) -> int:
        """Return how many connections are open."""
        with self._lock:
            return sum(cluster.shared is not None for cluster in self._clusters.values())

    def _fingerprint(self, config: StreamsConfig) -> bytes:
        given = config.model_dump(mode="json", exclude={"application_id"})
        return hashlib.blake2b(json.dumps(given, sort_keys=True).encode(), key=self._key, digest_size=32).digest()

    def _cluster_of(self, uid: str, fingerprint: bytes) -> _Cluster:
        with self._lock:
            idle = self._leave(uid, but=fingerprint)
            cluster = self._clusters.setdefault(fingerprint, _Cluster())
            cluster.applications.add(uid)
        _close(*idle)
        return cluster

    def _leave(self, uid: str, but: bytes | None = None) -> list[Connection | None]:
        idle = []
        for fingerprint in [key for key, cluster in self._clusters.items() if uid in cluster.applications]:
            cluster = self._clusters[fingerprint]
            if fingerprint != but:
                cluster.applications.discard(uid)
                if not cluster.applications:
                    idle.append(_retire(cluster))
                    del self._clusters[fingerprint]
        return idle

    def _take(self, cluster: _Cluster) -> _Shared | None:
        with self._lock:
            if cluster.shared is not None:
                cluster.shared.users += 1
            return cluster.shared

    def _connect(self, cluster: _Cluster, config: StreamsConfig, *, patient: bool) -> _Shared:
        if cluster.failure is not None and not patient and self._clock() < cluster.failed_at + RETRY_AFTER_S:
            raise cluster.failure.with_traceback(None)
        try:
            connection = self._open(config)
        except StreamsError as error:
            cluster.failure, cluster.failed_at = error, self._clock()
            raise
        cluster.failure = None
        shared = _Shared(connection, users=1)
        with self._lock:
            if cluster in self._clusters.values():
                cluster.shared = shared
            else:
                shared.retired = True  # the application was forgotten meanwhile
        return shared

    def _give_back(self, shared: _Shared) -> None:
        with self._lock:
            shared.users -= 1
            idle = shared.connection if shared.retired and not shared.users else None
        _close(idle)


def _retire(cluster: _Cluster) -> Connection | None:
    """Take a cluster's connection from it, and return it if nobody uses it."""
    shared, cluster.shared = cluster.shared, None
    if shared is None:
        return None
    shared.retired = True
    return None if shared.users else shared.connection


def _close(*connections: Connection | None) -> None:
    for connection in connections:
        if connection is not None:
            connection.close()
