"""Handlers: events become keys, but only for changes made by others."""

import kopf
import pytest

from millrace_operator.app.handlers import SELECTOR, Handlers, configure
from millrace_operator.app.metrics import OperatorMetrics
from millrace_operator.backfills.spark_application import BACKFILL_LABEL, BACKFILL_UID_LABEL
from millrace_operator.children.naming import MANAGER
from millrace_operator.children.naming import labels as child_labels
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import APPS, CHILDREN, PODS, RESETS, RESOURCES
from millrace_operator.model import ResourceRef


class Keys:
    """Records which keys are added."""

    def __init__(self):
        self.added = []

    def add(self, key, after=0.0, *, urgent=False):
        self.added.append((key, urgent))


@pytest.fixture
def keys():
    """The added keys."""
    return Keys()


@pytest.fixture
def caches():
    """Resources and children."""
    return Cache(), Cache()


@pytest.fixture
def handlers(keys, caches):
    """Handlers that add to those keys."""
    return Handlers(*caches, keys, OperatorMetrics())


def obj(version, generation=1, **metadata):
    """A resource as a watch delivers it."""
    fields = {"name": "orders", "namespace": "shop", "uid": "u", "generation": generation, **metadata}
    return {"metadata": {**fields, "resourceVersion": str(version)}, "spec": {}}


ORDERS = ResourceRef("StreamsApp", "shop", "orders")


def test_what_a_user_does_is_urgent(handlers, keys):
    """A new resource, a new spec, an annotation or a deletion is worked on at once."""
    handlers.on_resource(APPS, None, obj(1))
    handlers.on_resource(APPS, "MODIFIED", obj(2, generation=2))
    handlers.on_resource(APPS, "MODIFIED", obj(3, generation=2, annotations={"streams.millrace.dev/pause": "true"}))
    handlers.on_resource(APPS, "MODIFIED", obj(4, generation=3, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert keys.added == [(ORDERS, True)] * 4


def test_what_the_operator_does_starts_no_pass(handlers, keys, caches):
    """The operator's own status writes and finalizers come back through the watch, before or after their responses."""
    handlers.on_resource(APPS, "ADDED", obj(1))
    keys.added.clear()
    handlers.on_resource(APPS, "MODIFIED", {**obj(2, finalizers=["f"]), "status": {"replicas": 1}})
    caches[0].put(APPS, {**obj(3), "status": {"replicas": 2}})
    handlers.on_resource(APPS, "MODIFIED", {**obj(3), "status": {"replicas": 2}})
    assert keys.added == []


def test_resource_that_is_gone_is_forgotten(handlers, keys, caches):
    """Its key is queued once more, so that everything kept for it is dropped."""
    handlers.on_resource(APPS, "ADDED", obj(1))
    handlers.on_resource(APPS, "DELETED", obj(2))
    assert caches[0].get(APPS, "shop", "orders") is None
    assert keys.added[-1][0] == ORDERS


def test_change_of_a_child_is_a_pass_over_its_app(handlers, keys, caches):
    """The child's label names the application; events that the cache already knows are ignored."""
    pod = obj(5, name="orders-0", labels={"streams.millrace.dev/app": "orders"})
    handlers.on_child(PODS, "ADDED", pod)
    handlers.on_child(PODS, "MODIFIED", pod)
    handlers.on_child(PODS, "DELETED", {**pod, "metadata": {**pod["metadata"], "resourceVersion": "6"}})
    assert keys.added == [(ORDERS, False)] * 2
    assert caches[1].of_app("shop", "orders") == {}


def test_pods_of_spark_jobs_are_no_children(handlers, keys, caches):
    """They carry the operator's label for its admission policy. A backfill asks for its own; no application needs a pass."""
    labels = {"app.kubernetes.io/managed-by": MANAGER, BACKFILL_LABEL: "history", BACKFILL_UID_LABEL: "b-1"}
    pod = obj(5, name="history-1-driver", labels={**labels, "app.kubernetes.io/component": "backfill-driver"})
    handlers.on_child(PODS, "ADDED", pod)
    assert keys.added == []
    assert caches[1].of_kind(PODS) == []
    asked = dict.fromkeys(part.partition("=")[0] for part in SELECTOR.split(","))
    assert not asked.keys() <= pod["metadata"]["labels"].keys(), "watches and lists leave it out as well"
    assert asked.keys() <= child_labels("orders").keys()


def test_kopf_only_watches(handlers):
    """No handler makes kopf write annotations or finalizers, and the server filters children by label."""
    registry = handlers.registry()
    assert len(registry._watching.get_all_handlers()) == len(CHILDREN) + len(RESOURCES)
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    settings = kopf.OperatorSettings()
    configure(settings)
    selectors = settings.watching.label_selectors
    assert all(selectors[kind.group, kind.version, kind.plural] == SELECTOR for kind in CHILDREN)
    assert (RESETS.group, RESETS.version, RESETS.plural) not in selectors
    assert not settings.posting.enabled
    assert settings.persistence.finalizer.startswith("streams.millrace.dev/")
