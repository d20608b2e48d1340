"""The API server of the tests of `cluster`."""

from tests.operator.cluster.conftest import requests, server

__all__ = ["requests", "server"]
