"""Carrying out actions: each may be done twice, none hits an object that was not meant."""

import pytest

from millrace_operator.cluster.act import Hands, StaleError
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.instances import Instances
from millrace_operator.cluster.kinds import APPS, CLAIMS, CONFIG_MAPS, PODS, STATEFUL_SETS
from millrace_operator.model import FINALIZER, Apply, Delete, DrainPod, Key, ProvisionTopics, ResizeClaim, SetFinalizer
from millrace_operator.resets import PatchApp

LABELS = {"streams.millrace.dev/app": "orders"}
APP_PATH = "/apis/streams.millrace.dev/v1alpha1/namespaces/shop/streamsapps/orders"


@pytest.fixture
def caches():
    """The caches of resources and of children."""
    return Cache(), Cache()


@pytest.fixture
def hands(requests, caches):
    """Hands that reach no pods."""
    instances = Instances(port=1)
    yield Hands(requests, *caches, instances)
    instances.close()


@pytest.fixture
def app(server, caches):
    """A StreamsApp that is served and cached."""
    metadata = {"name": "orders", "namespace": "shop"}
    obj = server.put(APP_PATH, {"apiVersion": APPS.api_version, "kind": "StreamsApp", "metadata": metadata, "spec": {}})
    caches[0].put(APPS, obj)
    return obj


def child(server, caches, kind, name, **fields):
    """Serve and cache a child."""
    metadata = {"name": name, "namespace": "shop", "labels": LABELS}
    obj = server.put(kind.path("shop", name), {"kind": kind.kind, "metadata": metadata, **fields})
    caches[1].put(kind, obj)
    return obj


def test_applied_object_is_seen_by_the_next_pass(hands, caches, app):
    """The answer goes into the cache: the watch may be late."""
    metadata = {"name": "m", "namespace": "shop", "labels": LABELS}
    hands.do(Apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}), app)
    assert Key("ConfigMap", "m") in caches[1].of_app("shop", "orders")


def test_deleted_object_is_gone_for_the_next_pass(server, hands, caches, app):
    """The very object that was seen is deleted, with its dependents in the background."""
    obj = child(server, caches, CONFIG_MAPS, "m")
    hands.do(Delete(Key("ConfigMap", "m"), obj["metadata"]["uid"]), app)
    assert caches[1].of_app("shop", "orders") == {}
    uid = obj["metadata"]["uid"]
    assert server.asked[-1][3] == {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}


def test_orphaning_leaves_the_dependents(server, hands, caches, app):
    """A StatefulSet that is replaced keeps its pods."""
    obj = child(server, caches, STATEFUL_SETS, "orders")
    hands.do(Delete(Key("StatefulSet", "orders"), obj["metadata"]["uid"], orphan=True), app)
    assert server.asked[-1][3]["propagationPolicy"] == "Orphan"


def test_what_is_gone_already_is_well_deleted(server, hands, caches, app):
    """Deleting again is no failure."""
    obj = child(server, caches, CONFIG_MAPS, "m")
    server.objects.clear()
    hands.do(Delete(Key("ConfigMap", "m"), obj["metadata"]["uid"]), app)
    assert caches[1].of_app("shop", "orders") == {}


def test_another_object_of_the_name_is_not_deleted(server, hands, caches, app):
    """Somebody has made it anew since it was seen: the pass ends."""
    obj = child(server, caches, PODS, "orders-0")
    server.objects.pop(PODS.path("shop", "orders-0"))
    server.put(PODS.path("shop", "orders-0"), {"kind": "Pod", "metadata": {"name": "orders-0", "namespace": "shop"}})
    with pytest.raises(StaleError):
        hands.do(Delete(Key("Pod", "orders-0"), obj["metadata"]["uid"]), app)
    assert PODS.path("shop", "orders-0") in server.objects


def test_claim_grows(server, hands, caches, app):
    """Only its size is patched, and only of the claim that was seen."""
    obj = child(server, caches, CLAIMS, "state-orders-0", spec={"resources": {"requests": {"storage": "1Gi"}}})
    hands.do(ResizeClaim("state-orders-0", obj["metadata"]["uid"], "2Gi"), app)
    assert server.objects[CLAIMS.path("shop", "state-orders-0")]["spec"]["resources"]["requests"]["storage"] == "2Gi"
    with pytest.raises(StaleError):
        hands.do(ResizeClaim("state-orders-0", "another", "3Gi"), app)


def test_finalizer_is_set_and_removed_beside_others(server, hands, caches, app):
    """Those of other tools stay."""
    server.put(APP_PATH, {**app, "metadata": {**app["metadata"], "finalizers": ["other/one"]}})
    caches[0].put(APPS, server.objects[APP_PATH])
    hands.do(SetFinalizer(True), server.objects[APP_PATH])
    assert server.objects[APP_PATH]["metadata"]["finalizers"] == ["other/one", FINALIZER]
    hands.do(SetFinalizer(False), caches[0].get(APPS, "shop", "orders"))
    assert server.objects[APP_PATH]["metadata"]["finalizers"] == ["other/one"]


def test_finalizer_of_a_changed_resource_ends_the_pass(server, hands, app):
    """The decision was about something older."""
    server.put(APP_PATH, app)
    with pytest.raises(StaleError):
        hands.do(SetFinalizer(True), app)


def test_finalizer_of_a_resource_that_is_gone_is_removed(server, hands, caches, app):
    """Deletion never hangs on its own end."""
    server.objects.clear()
    hands.do(SetFinalizer(False), app)
    assert caches[0].get(APPS, "shop", "orders") is None


def test_only_the_pod_that_was_seen_is_drained(server, hands, caches, app):
    """Another pod of the name has other tasks; one without an address has nothing to leave."""
    obj = child(server, caches, PODS, "orders-0")
    hands.do(DrainPod("orders-0", obj["metadata"]["uid"]), app)
    with pytest.raises(StaleError):
        hands.do(DrainPod("orders-0", "another"), app)


def test_reset_changes_annotations_and_status_of_its_app(server, hands, caches, app):
    """Both are merge patches, for the very app that was seen."""
    server.put(APP_PATH, {**app, "status": {"stableRevision": "x", "replicas": 1}})
    uid = app["metadata"]["uid"]
    hands.patch_app("shop", "orders", PatchApp(uid, {"a": "b"}, {"stableRevision": None}))
    served = server.objects[APP_PATH]
    assert served["metadata"]["annotations"] == {"a": "b"}
    assert served["status"] == {"replicas": 1}
    with pytest.raises(StaleError):
        hands.patch_app("shop", "orders", PatchApp("another", {"a": "c"}))


def test_action_on_kafka_is_not_for_these_hands(hands, app):
    """A mistake in wiring is told as one."""
    with pytest.raises(TypeError):
        hands.do(ProvisionTopics("{}", ("t",)), app)
