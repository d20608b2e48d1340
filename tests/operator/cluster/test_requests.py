"""Requests: counted, gated, with errors that say what was refused."""

import socket

import pytest
from kubernetes import client

from millrace_operator.cluster.kinds import CONFIG_MAPS, LEASES, PODS
from millrace_operator.cluster.requests import ApiError, NotAllowedToWriteError, Requests

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "shop"}, "data": {"a": "1"}}


def test_apply_forces_the_fields_under_the_operators_name(server, requests):
    """Server-side apply takes over fields that somebody else has edited."""
    uid = requests.create(CONFIG_MAPS, "shop", MAP)["metadata"]["uid"]
    applied = requests.apply(CONFIG_MAPS, MAP, uid)
    assert applied["data"] == {"a": "1"}
    method, path, query, body = server.asked[-1]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/shop/configmaps/m")
    assert query == {"fieldManager": "millrace-operator", "force": "true"}
    assert body == {**MAP, "metadata": {**MAP["metadata"], "uid": uid}}


def test_every_request_is_counted_by_verb_resource_and_code(requests):
    """Failed requests are counted as well."""
    requests.create(CONFIG_MAPS, "shop", MAP)
    with pytest.raises(ApiError):
        requests.get(PODS, "shop", "nobody")
    assert requests.counts == [("create", "configmaps", "201"), ("get", "pods", "404")]


def test_error_has_the_servers_words(server, requests):
    """The error has the verb, the path and the API server's message."""
    server.failures.append((403, "Forbidden"))
    with pytest.raises(
        ApiError, match="apply /api/v1/namespaces/shop/configmaps/m: Forbidden, as the test wants it"
    ) as error:
        requests.apply(CONFIG_MAPS, MAP, "u")
    assert (error.value.status, error.value.reason) == (403, "Forbidden")


def test_without_the_lease_nothing_is_written(server, requests):
    """Writes are not even sent; reads continue, and the Lease itself may be written."""
    requests.may_write_seconds = 0.0
    for write in (
        lambda: requests.apply(CONFIG_MAPS, MAP, "u"),
        lambda: requests.create(CONFIG_MAPS, "shop", MAP),
        lambda: requests.patch(CONFIG_MAPS, "shop", "m", {}),
        lambda: requests.update(CONFIG_MAPS, "shop", "m", MAP),
        lambda: requests.delete(CONFIG_MAPS, "shop", "m", uid="u", propagation="Background"),
        requests.check_may_write,
    ):
        with pytest.raises(NotAllowedToWriteError):
            write()
    assert server.asked == []
    requests.list(PODS, "shop")
    requests.create(LEASES, "shop", {"metadata": {"name": "l"}})
    assert [asked[0] for asked in server.asked] == ["GET", "POST"]


def test_write_is_not_sent_when_the_lease_is_lost_on_the_way_to_the_connection(server):
    """The process may have been suspended between the first check and the sending."""
    allowed = [10.0, 10.0]
    configuration = client.Configuration(host=server.url)
    configuration.retries = False
    sent = Requests(client.ApiClient(configuration), lambda: allowed.pop(0) if allowed else 0.0, lambda *_: None)
    with pytest.raises(NotAllowedToWriteError):
        sent.apply(CONFIG_MAPS, MAP, "u")
    assert server.asked == []
    assert sent.list(PODS, "shop")["items"] == []


def test_write_ends_before_the_lease_does():
    """The operator waits for an unresponsive API server no longer than it may write."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configuration = client.Configuration(host=f"http://127.0.0.1:{silent.getsockname()[1]}")
        configuration.retries = False
        counts = []
        requests = Requests(client.ApiClient(configuration), lambda: 0.6, lambda *count: counts.append(count))
        with pytest.raises(ApiError, match="does not answer") as error:
            requests.apply(CONFIG_MAPS, MAP, "u")
    assert error.value.status == 0
    assert counts[0][2] == "none"
    assert counts[0][3] < 9  # and not the ten seconds that a request may take
