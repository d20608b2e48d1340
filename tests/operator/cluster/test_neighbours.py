"""Which StreamsApps use an application's brokers."""

import pytest
from tests.operator.kafka.support import count_plan

from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import APPS, BACKFILLS, CONFIG_MAPS, STATEFUL_SETS
from millrace_operator.cluster.observe import desired_from, neighbours_of
from millrace_operator.model import DesiredApp

LABELS = {"streams.millrace.dev/app": "b"}


def app(name, namespace="team", servers=("kafka-0:9092", "kafka-1:9092"), application_id="orders", **fields):
    """Return a StreamsApp as the API returns it."""
    return {
        "apiVersion": APPS.api_version,
        "kind": APPS.kind,
        "metadata": {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"},
        "spec": {"applicationId": application_id, "kafka": {"bootstrapServers": list(servers)}, **fields},
    }


def found(first, second, *, children=(), backfills=(), ids=None, deleting=False):
    """Return the neighbours of the first of two StreamsApps."""
    resources, objects = Cache(), Cache()
    for obj in (first, second):
        resources.put(APPS, obj)
    for obj in backfills:
        resources.put(BACKFILLS, obj)
    for kind, obj in children:
        objects.put(kind, obj)
    if deleting:
        first["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return neighbours_of(desired_from(first, DesiredApp), resources, objects, lambda ref: (ids or {}).get(ref.name))


def child(name, **fields):
    """Return an object that belongs to the second one."""
    metadata = {"name": name, "namespace": "team", "uid": name, "labels": LABELS, "resourceVersion": "2"}
    return {"metadata": metadata, **fields}


@pytest.mark.parametrize(
    ("second", "ids", "known"),
    [
        (app("b"), {}, True),
        (app("b", "other", servers=("x:9092", "KAFKA-1:9092")), {}, True),
        (app("b", servers=("elsewhere:9092",)), {}, False),
        (app("b", servers=("elsewhere:9092",)), {"a": "1", "b": "1"}, True),
        (app("b"), {"a": "1", "b": "2"}, False),
        (app("b"), {"a": "1"}, True),
        (app("b", application_id="others"), {}, False),
    ],
)
def test_brokers_are_compared_by_cluster_id_or_else_by_address(second, ids, known):
    """The cluster id decides once both are known; before that, one common address is enough."""
    assert [item.name for item in found(app("a"), second, ids=ids)] == (["b"] if known else [])


def test_what_a_neighbour_does():
    """A neighbour that wants pods is running; one whose handover names the application in its namespace takes it over."""
    running = child("b", spec={"replicas": 2})
    (item,) = found(app("a"), app("b"), children=[(STATEFUL_SETS, running)])
    assert (item.runs, item.takes_over, item.same_id) == (True, False, True)
    handover = {"from": {"name": "a"}}
    (item,) = found(app("a"), app("b", handover=handover))
    assert (item.runs, item.takes_over) == (False, True)
    (item,) = found(app("a"), app("b", "other", handover=handover))
    assert not item.takes_over


@pytest.mark.parametrize(("namespace", "name"), [("team", "history"), ("other", None)])
def test_neighbour_that_a_backfill_keeps_stopped_is_known(namespace, name):
    """It has no pods, but what it has is being written: a successor must not begin."""
    metadata = {"name": "history", "namespace": namespace, "uid": "h", "resourceVersion": "3"}
    backfill = {"metadata": metadata, "spec": {"appRef": {"name": "b"}}, "status": {"holdsApp": True}}
    (item,) = found(app("a"), app("b"), backfills=[backfill])
    assert (item.runs, item.backfill) == (False, name)


def test_topics_that_others_name_are_looked_at_on_deletion():
    """The plans of all applications on the same brokers say which topics they read."""
    plan = child("b-plan-1", data={"plan.json": count_plan("orders-x-changelog", "others").to_json()})
    second = app("b", application_id="others")
    (item,) = found(app("a"), second, children=[(CONFIG_MAPS, plan)], deleting=True)
    assert not item.same_id
    assert {"orders-x-changelog", "others-c-changelog"} <= item.topics
