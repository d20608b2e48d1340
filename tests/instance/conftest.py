"""Fixtures of the tests of a running instance."""

from __future__ import annotations

import secrets

import pytest


@pytest.fixture
def app() -> str:
    """Return a new application id."""
    return f"app-{secrets.token_hex(4)}"
