"""Headers of OTLP requests out of a file: an API key must not stand in the environment, and changes while the process runs.

The file is looked at before every request, of which there are a few a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from requests import PreparedRequest, Session
from requests.auth import AuthBase

from millrace.errors import ConfigError

__all__ = ["read_headers", "session_with_headers"]

_log = logging.getLogger(__name__)


def read_headers(file: Path) -> Mapping[str, str]:
    """Return the headers in a file: `name=value`, separated by commas or lines; values are URL-encoded.

    Raises:
        ConfigError: it cannot be read, or something in it is no header; shows no value.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"telemetry.otlp.headers.file={file} cannot be read: {why}. Is the secret mounted?") from None
    headers = {}
    for number, part in enumerate(filter(None, map(str.strip, text.replace("\n", ",").split(","))), 1):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals or not name or any(character.isspace() for character in name):
            raise ConfigError(
                f"telemetry.otlp.headers.file={file}: entry {number} is no header: write name=value,name=value, with values "
                "URL-encoded (its text is not shown)"
            )
        headers[unquote(name).lower()] = unquote(value)
    return headers


class _FileHeaders(AuthBase):
    """Adds the headers that a file has at the moment; those it had last while it cannot be read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last = read_headers(file)

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        try:
            self._last = read_headers(self._file)
        except ConfigError as error:
            _log.warning("%s; headers are sent as they were", error)
        request.headers.update(self._last)
        return request


def session_with_headers(file: Path) -> Session:
    """Return an HTTP session whose requests have the headers that a file has at the time.

    Raises:
        ConfigError: it cannot be read now.
    """
    session = Session()
    session.auth = _FileHeaders(file)
    return session
