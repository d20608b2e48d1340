"""The fixture `registry`: a schema registry for tests, in this process."""

from tests.schema_registry import registry

__all__ = ["registry"]
