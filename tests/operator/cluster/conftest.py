"""An API server for tests of the operator's access to Kubernetes."""

import pytest
from tests.operator.cluster.api_server import ApiServer

from millrace_operator.cluster.requests import Requests


@pytest.fixture
def server():
    """An empty API server."""
    server = ApiServer()
    yield server
    server.close()


class Sent(Requests):
    """Requests that can be forbidden to write and that count what they send."""

    def __init__(self, api):
        self.may_write_seconds = 10.0
        self.counts = []
        super().__init__(api, lambda: self.may_write_seconds, lambda *count: self.counts.append(count[:3]))


@pytest.fixture
def requests(server):
    """Requests to that server."""
    return Sent(server.client)
