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
    """Options of the shared broker.

    Nobody stops it, so it may pause for long without being considered dead: that would cost markers. Streams groups rebalance as
    quickly as classic ones do here, by short heartbeat intervals and without delays. It has a rack, for rack-aware assignment.
    """
    return {
        "config": {
            "broker.session.timeout.ms": "60000",
            "broker.rack": "rack-1",
            "group.streams.min.heartbeat.interval.ms": "200",
            "group.streams.heartbeat.interval.ms": "200",
            "group.streams.min.session.timeout.ms": "2000",
            "group.streams.min.assignment.interval.ms": "0",
            "group.streams.assignment.interval.ms": "0",
            "group.streams.initial.rebalance.delay.ms": "0",
        }
    }


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Undo what a command run in the test's own process has configured: other tests look at the log too."""
    loggers = [logging.getLogger(), logging.getLogger("millrace")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
