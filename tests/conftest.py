"""Shared by all tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# An example's duration depends on the machine, not on the product: a pause of a quarter of a second must not fail a test.
settings.register_profile(
    "millrace",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("millrace")


@pytest.fixture(scope="session")
def kafka_options() -> Mapping[str, Any]:
    """Nobody stops the shared broker, so it may pause for long without being considered dead: that would cost markers."""
    return {"config": {"broker.session.timeout.ms": "60000"}}


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Undo what a command run in the test's own process has configured: other tests look at the log too."""
    loggers = [logging.getLogger(), logging.getLogger("millrace")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
