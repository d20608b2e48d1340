"""Fixtures of the tests of serdes."""

from tests.schema_registry import registry

__all__ = ["registry"]
