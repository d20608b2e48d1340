"""Credentials that change while clients are open: a watch on the files they come from.

Kubernetes replaces the files of a mounted secret in place. A user name and password for PLAIN or SCRAM are handed to every open
client, which uses them from its next authentication on; connections that stand stay. What tokens are made from is read for every
token. Everything else (certificates, keys) librdkafka reads once, when a client is made, and kafka-python gets it in a context
made once, so a change of it is only told: `stale`.

Files are looked at every two seconds by their `stat`, and read only if that has changed.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from millrace.errors import ConfigError
from millrace.kafka.security import Security

__all__ = ["CredentialWatch", "LiveClients"]

log = logging.getLogger("millrace.kafka.credentials")

_POLL_S: Final = 2.0
_SWAPPED: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

Prefixes = tuple[str, ...]
"""Which prefixed settings a client has, besides those without a prefix; () for none."""
Credentials = tuple[str | None, str | None]


class LiveClient(Protocol):
    """A client that can be given other credentials while it is open."""

    def set_sasl_credentials(self, username: str, password: str) -> object:
        """Use these from the next authentication on."""


class LiveClients:
    """The clients of a process that are open, as far as they still exist, with the credentials that each has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: list[tuple[weakref.ref[LiveClient], Prefixes]] = []
        self._given: dict[Prefixes, Credentials] = {}

    def add(self, client: LiveClient, prefixes: Prefixes) -> None:
        """Note a client that was opened."""
        with self._lock:
            self._clients = [item for item in self._clients if item[0]() is not None]
            self._clients.append((weakref.ref(client), prefixes))

    def hand_out(self, credentials: Mapping[Prefixes, Credentials]) -> int:
        """Give clients their present credentials, and return how many clients took them.

        Args:
            credentials: User name and password by the prefixes of clients.
        """
        with self._lock:
            clients = [(reference(), prefixes) for reference, prefixes in self._clients]
        taken = 0
        for client, prefixes in clients:
            username, password = credentials.get(prefixes, (None, None))
            if client is not None and username is not None and password is not None:
                try:
                    client.set_sasl_credentials(username, password)
                    taken += 1
                except RuntimeError:  # it was closed meanwhile
                    log.debug("A client was closed before it was given its new credentials")
        return taken


class CredentialWatch:
    """Keeps the clients of an instance in credentials.

    Args:
        clients: Those that are open.
        security: Reads the security settings of the clients with these prefixes, from the files as they are now.
        kinds: The prefixes of every kind of client.
        files: Those that settings refer to, beside the certificates.
    """

    def __init__(
        self,
        clients: LiveClients,
        security: Callable[[Prefixes], Security],
        kinds: Sequence[Prefixes],
        files: Sequence[Path],
    ) -> None:
        self._clients = clients
        self._security = security
        self._kinds = tuple(kinds)
        locations = {path for found in self._read().values() for path in found.locations}
        self._files = tuple(sorted({*files, *locations}))
        self._stats = self._look()  # before what counts is read: a change between the two is seen by the next look
        now = self._read()
        self._credentials = _credentials(now)
        self._material = _material(now)
        self._problem = ""
        self._stop = threading.Event()
        self.stale = False
        """Whether what cannot be changed on open clients differs from what it was at the start."""

    def start(self) -> None:
        """Start watching, if there is anything to watch."""
        if self._files:
            threading.Thread(target=self._run, name="millrace-credentials", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def check(self) -> None:
        """Act on what has changed since the last look."""
        stats = self._look()
        if stats == self._stats:
            return
        try:
            now = self._read()
            stale = _material(now) != self._material
        except ConfigError as error:  # a file is being replaced, or is gone: clients keep what they have
            if self._problem != str(error):
                self._problem = str(error)
                log.warning("Credentials are kept as they are: %s", error)
            return
        self._stats, self._problem = stats, ""
        credentials = _credentials(now)
        if credentials != self._credentials:
            self._credentials = credentials
            taken = self._clients.hand_out(credentials)
            log.info("Credentials have changed: %d clients use them from their next authentication on", taken)
        if stale and not self.stale:
            log.warning(
                "Certificates, keys or other credentials have changed that a client takes when it is opened: restart this "
                "instance to use them"
            )
        self.stale = stale

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            try:
                self.check()
            except Exception:  # it is tried again, and the clients go on with what they have
                log.exception("Changed credentials could not be handed to the clients")

    def _read(self) -> dict[Prefixes, Security]:
        return {kind: self._security(kind) for kind in self._kinds}

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(map(_stat, self._files))


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _credentials(found: Mapping[Prefixes, Security]) -> dict[Prefixes, Credentials]:
    return {kind: (item.username, item.password) for kind, item in found.items() if item.mechanism in _SWAPPED}


def _material(found: Mapping[Prefixes, Security]) -> bytes:
    """Return a digest of what clients take only once."""
    digest = hashlib.sha256()
    for security in found.values():
        rest = replace(security, oauth=None)
        if security.mechanism in _SWAPPED:
            rest = replace(rest, username=None, password=None)
        digest.update(repr(rest.fields()).encode())
        for path in rest.locations:
            try:
                digest.update(path.read_bytes())
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return digest.digest()
