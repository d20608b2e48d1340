"""Fixtures of the tests of Kafka clients."""

import pytest

from millrace.dev import _readiness
from millrace.kafka import admin_requests


@pytest.fixture
def endless_requests(monkeypatch):
    """Let a request last longer than a test may, unless it is told how long it may take.

    So who asks for an answer within a second is known to have said so, and no test has to look at a clock.
    """
    monkeypatch.setitem(_readiness._CLIENT_CONFIG, "socket.timeout.ms", 300_000)
    monkeypatch.setattr(admin_requests, "REQUEST_TIMEOUT_S", 600.0)
