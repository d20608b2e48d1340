"""Asks whether a request may still be sent at the last moment there is: right before its bytes go out.

Between a check and the sending of a request a process may stand still for as long as it likes: it is paused, its machine sleeps,
other threads run. When it goes on, another operator may long have taken over. So the check is made in the connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kubernetes import client
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

_thread = threading.local()


@contextmanager
def fenced(check: Callable[[], None]) -> Iterator[None]:
    """Have `check` called before anything is sent by this thread; it raises if nothing may be."""
    _thread.check = check
    try:
        yield
    finally:
        _thread.check = None


def fence(api: client.ApiClient) -> None:
    """Make a client's connections heed `fenced`."""
    api.rest_client.pool_manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}


def _ask() -> None:
    check = getattr(_thread, "check", None)
    if check is not None:
        check()


class _Connection(HTTPConnection):
    def send(self, data: Any) -> None:
        """Send, if that is still allowed."""
        _ask()
        super().send(data)


class _SecureConnection(HTTPSConnection):
    def send(self, data: Any) -> None:
        """Send, if that is still allowed."""
        _ask()
        super().send(data)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection
