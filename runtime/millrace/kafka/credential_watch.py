"""Watches the files that credentials come from, and gives open clients the new ones.

Kubernetes replaces the files of a mounted Secret in place. Every open client is given the new user name and password for PLAIN or
SCRAM and uses them from its next authentication on; open connections stay open. The inputs of tokens are read for every token.
Certificates and keys are read once, when a client is opened, so a change is only reported: `stale`.

Every two seconds the files are checked with `stat`, and read only if that has changed.
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
from millrace.kafka.security import PASSWORD_MECHANISMS, Security

__all__ = ["CredentialWatch", "LiveClients"]

log = logging.getLogger("millrace.kafka.credentials")

_POLL_S: Final = 2.0

Prefixes = tuple[str, ...]
"""The prefixes of a client's settings, in addition to those without a prefix; () if there are none."""
Credentials = tuple[str | None, str | None]


class LiveClient(Protocol):
    """An open client that can be given other credentials."""

    def set_sasl_credentials(self, username: str, password: str) -> object:
        """Use these from the next authentication on."""


class LiveClients:
    """The open clients of a process, held by weak references."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: list[tuple[weakref.ref[LiveClient], Prefixes]] = []

    def add(self, client: LiveClient, prefixes: Prefixes) -> None:
        """Add a client that was opened."""
        with self._lock:
            self._clients = [item for item in self._clients if item[0]() is not None]
            self._clients.append((weakref.ref(client), prefixes))

    def set_credentials(self, credentials: Mapping[Prefixes, Credentials]) -> int:
        """Give clients their current credentials, and return how many accepted them.

        Args:
            credentials: User name and password by the clients' prefixes.
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
                except RuntimeError:  # it has been closed
                    log.debug("A client was closed before it was given its new credentials")
        return taken


class CredentialWatch:
    """Keeps the credentials of an instance's clients up to date.

    Args:
        clients: The open clients.
        security: Reads the security settings of the clients with these prefixes from the current files.
        kinds: The prefixes of every kind of client.
        files: The files that settings refer to, except the certificates.
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
        self._stats = self._stat_files()  # before the contents are read, so that a change in between is noticed later
        now = self._read()
        self._credentials = _credentials(now)
        self._fixed_settings = _fixed_settings(now)
        self._problem = ""
        self._stop = threading.Event()
        self.stale = False
        """Whether settings that open clients cannot change differ from those they were opened with."""

    def start(self) -> None:
        """Start watching, if there is anything to watch."""
        if self._files:
            threading.Thread(target=self._run, name="millrace-credentials", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop.set()

    def check(self) -> None:
        """Act on changes since the last check."""
        stats = self._stat_files()
        if stats == self._stats:
            return
        try:
            now = self._read()
            stale = _fixed_settings(now) != self._fixed_settings
        except ConfigError as error:  # a file is missing or being replaced: clients keep their credentials
            if self._problem != str(error):
                self._problem = str(error)
                log.warning("Credentials stay as they are: %s", error)
            return
        self._stats, self._problem = stats, ""
        credentials = _credentials(now)
        if credentials != self._credentials:
            self._credentials = credentials
            taken = self._clients.set_credentials(credentials)
            log.info("Credentials have changed: %d clients will use them from their next authentication on", taken)
        if stale and not self.stale:
            log.warning(
                "Certificates, keys or other credentials have changed that clients read only when they are opened: restart "
                "this instance to use them"
            )
        self.stale = stale

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            try:
                self.check()
            except Exception:  # the next check tries again; the clients keep their credentials
                log.exception("The clients could not be given their new credentials")

    def _read(self) -> dict[Prefixes, Security]:
        return {kind: self._security(kind) for kind in self._kinds}

    def _stat_files(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(map(_stat, self._files))


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _credentials(found: Mapping[Prefixes, Security]) -> dict[Prefixes, Credentials]:
    return {
        kind: (item.username, item.password) for kind, item in found.items() if item.mechanism in PASSWORD_MECHANISMS
    }


def _fixed_settings(found: Mapping[Prefixes, Security]) -> bytes:
    """Return a digest of the settings that clients read only when they are opened."""
    digest = hashlib.sha256()
    for security in found.values():
        rest = replace(security, oauth=None)
        if security.mechanism in PASSWORD_MECHANISMS:
            rest = replace(rest, username=None, password=None)
        digest.update(repr(rest.fields()).encode())
        for path in rest.locations:
            try:
                digest.update(path.read_bytes())
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return digest.digest()
