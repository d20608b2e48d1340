"""Logging to standard error, one line per record, as text for people or JSON for log collectors."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

__all__ = ["LogFormat", "LogLevel", "are_json", "configure"]

_TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LogFormat(StrEnum):
    """The format of a log record."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class _JsonLines(logging.Formatter):
    """One JSON object per record: time (UTC), level, logger, message, thread, and error with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(
    *, verbose: bool, quiet: bool = True, level: LogLevel | None = None, form: LogFormat = LogFormat.TEXT
) -> None:
    """Set up logging of this process; may be called again.

    Args:
        verbose: Whether Millrace logs at DEBUG, whatever `level` says.
        quiet: Whether Millrace logs only warnings unless `level` is given, because the command itself prints what it does.
            Its Kafka clients then log only errors, since they warn about temporary problems, such as a coordinator that is
            loading.
        level: The level of Millrace and of the user's program; libraries do not log below INFO. If None, Millrace's level
            depends on `quiet`, and everything else logs from WARNING.
        form: The format of a record.
    """
    root = logging.getLogger()
    logging.basicConfig()
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(_JsonLines() if form is LogFormat.JSON else logging.Formatter(_TEXT))
    root.setLevel(logging.WARNING if level is None else max(logging.getLevelName(level.value), logging.INFO))
    if verbose:
        ours: int | str = logging.DEBUG
    elif level is None:
        ours = logging.WARNING if quiet else logging.INFO
    else:
        ours = level.value
    logging.getLogger("millrace").setLevel(ours)
    alone = quiet and not verbose and level is None
    logging.getLogger("millrace.kafka.librdkafka").setLevel(logging.ERROR if alone else logging.NOTSET)


def are_json() -> bool:
    """Return whether log records of this process are written as JSON."""
    return any(isinstance(handler.formatter, _JsonLines) for handler in logging.getLogger().handlers)
