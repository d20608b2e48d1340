"""What all tests share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Take back what a command that ran in the test's own process has set: others look at the log too."""
    loggers = [logging.getLogger(), logging.getLogger("millrace")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
