"""Statuses and Events are written only when there is something to report."""

import pytest

from millrace.manifest import StreamsAppStatus
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.events import EventRecorder
from millrace_operator.cluster.executor import status_patch, write_status
from millrace_operator.cluster.kinds import APPS, EVENTS
from millrace_operator.cluster.requests import ApiError
from millrace_operator.model import Event

PATH = "/apis/streams.millrace.dev/v1alpha1/namespaces/shop/streamsapps/orders"


@pytest.fixture
def app(server):
    """A StreamsApp with a status."""
    return server.put(
        PATH,
        {
            "apiVersion": APPS.api_version,
            "kind": "StreamsApp",
            "metadata": {"name": "orders", "namespace": "shop"},
            "status": {"replicas": 1, "lag": {"total": 5}},
        },
    )


def test_only_what_differs_is_written(server, requests, app):
    """Changed fields are sent, missing ones are removed, and the answer goes into the cache."""
    cache = Cache()
    assert write_status(requests, cache, APPS, app, StreamsAppStatus(replicas=2))
    assert server.asked[-1][3]["status"] == {"replicas": 2, "lag": None, **server.asked[-1][3]["status"]}
    cached = cache.get(APPS, "shop", "orders")
    assert cached is not None
    assert (cached["status"]["replicas"], "lag" in cached["status"]) == (2, False)


def test_value_that_this_version_cannot_read_stays(server, requests, app):
    """A later version has written it, and finds it when it comes back; a value that this version has replaces it."""
    later = {"lifecycleState": "Dreaming", "dream": {"of": "sheep"}, "conditions": [{"type": 5}]}
    app = server.put(PATH, {**app, "status": {**later, "replicas": "many", "lag": {"total": 5}}})
    cache = Cache()
    write_status(requests, cache, APPS, app, StreamsAppStatus(replicas=2))
    cached = cache.get(APPS, "shop", "orders")
    assert cached is not None
    assert cached["status"] == {**cached["status"], **later, "replicas": 2}
    assert "lag" not in cached["status"]


def test_same_status_is_not_written(server, requests, app):
    """A pass over a healthy app costs nothing."""
    cache = Cache()
    write_status(requests, cache, APPS, app, StreamsAppStatus(replicas=2))
    asked = len(server.asked)
    assert not write_status(requests, cache, APPS, server.objects[PATH], StreamsAppStatus(replicas=2))
    assert len(server.asked) == asked


def test_status_of_a_changed_resource_is_refused(server, requests, app):
    """The status was derived from an older version."""
    server.put(PATH, app)
    with pytest.raises(ApiError) as error:
        write_status(requests, Cache(), APPS, app, StreamsAppStatus(replicas=2))
    assert error.value.conflict


def test_patch_of_lists_replaces_them():
    """A merge patch cannot change part of a list."""
    assert status_patch({"a": [1, 2]}, {"a": [1]}) == {"a": [1]}
    assert status_patch({"a": [1]}, {"a": [1]}) == {}


def events(server):
    """The stored Events."""
    return [obj for path, obj in server.objects.items() if path.startswith(EVENTS.path("shop"))]


def test_event_that_happens_again_is_counted(server, requests, app):
    """One object per resource, reason and message."""
    recorder = EventRecorder(requests, "operator-0")
    for _ in range(3):
        recorder.record(app, Event("RollingOut", "A new revision."))
    recorder.record(app, Event("RollingOut", "Another revision.", "Warning"))
    assert sorted((item["message"], item["count"], item["type"]) for item in events(server)) == [
        ("A new revision.", 3, "Normal"),
        ("Another revision.", 1, "Warning"),
    ]
    assert events(server)[0]["involvedObject"]["uid"] == app["metadata"]["uid"]


def test_event_of_an_operator_before_is_counted_on(server, requests, app):
    """The same object is used after a restart, although the operator may not read it."""
    EventRecorder(requests, "operator-0").record(app, Event("R", "m"))
    EventRecorder(requests, "operator-1").record(app, Event("R", "m"))
    assert [item["count"] for item in events(server)] == [2]
    assert all(asked[0] != "GET" for asked in server.asked)


def test_expired_event_is_created_again(server, requests, app):
    """Events live for an hour."""
    recorder = EventRecorder(requests, "operator-0")
    recorder.record(app, Event("R", "m"))
    for path in [path for path in server.objects if "/events/" in path]:
        del server.objects[path]
    recorder.record(app, Event("R", "m"))
    assert [item["count"] for item in events(server)] == [1]


def test_failure_to_write_an_event_is_only_logged(server, requests, app, caplog):
    """It is logged in full and counted: Events cannot be written in a namespace that is being deleted."""
    server.failures.append((403, "Forbidden"))
    counted = []
    recorder = EventRecorder(requests, "operator-0", lambda *told: counted.append(told))
    recorder.record(app, Event("KafkaLeftBehind", "These topics stay: a, b.", "Warning"))
    assert "KafkaLeftBehind: These topics stay: a, b." in caplog.text
    assert counted == [("Warning", "KafkaLeftBehind")]
