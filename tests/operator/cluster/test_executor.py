"""Carrying out actions: each may be repeated, and none affects the wrong object."""

import pytest

from millrace_operator.children.naming import APP_UID_LABEL, DRAIN_ANNOTATION, FINALIZER, labels, owner_reference
from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.executor import Executor, NameTakenError, StaleError
from millrace_operator.cluster.kinds import APPS, CLAIMS, CONFIG_MAPS, PODS, STATEFUL_SETS
from millrace_operator.model import Apply, Delete, DrainPod, Key, ProvisionTopics, Release, ResizeClaim, SetFinalizer
from millrace_operator.resets.reconciler import PatchApp

LABELS = labels("orders")
MANIFEST_OF_R = "orders-rev-r"
APP_PATH = "/apis/streams.millrace.dev/v1alpha1/namespaces/shop/streamsapps/orders"


@pytest.fixture
def caches():
    """The caches of resources and of children."""
    return Cache(), Cache()


@pytest.fixture
def executor(requests, caches):
    """An executor for the API server."""
    return Executor(requests, *caches)


@pytest.fixture
def app(server, caches):
    """A StreamsApp that is served and cached."""
    metadata = {"name": "orders", "namespace": "shop"}
    obj = server.put(APP_PATH, {"apiVersion": APPS.api_version, "kind": "StreamsApp", "metadata": metadata, "spec": {}})
    caches[0].put(APPS, obj)
    return obj


def manifest_of(app):
    """Return the desired ConfigMap of a revision."""
    marks = {**labels("orders", revision="r"), APP_UID_LABEL: app["metadata"]["uid"]}
    metadata = {"name": MANIFEST_OF_R, "namespace": "shop", "labels": marks}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def child(server, caches, kind, name, **fields):
    """Serve and cache a child."""
    metadata = {"name": name, "namespace": "shop", "labels": LABELS}
    obj = server.put(kind.path("shop", name), {"kind": kind.kind, "metadata": metadata, **fields})
    caches[1].put(kind, obj)
    return obj


def test_applied_object_is_seen_by_the_next_pass(executor, caches, app):
    """The answer goes into the cache: the watch may be late."""
    executor.do(Apply(manifest_of(app)), app)
    assert Key("ConfigMap", MANIFEST_OF_R) in caches[1].of_app("shop", "orders")


def test_foreign_object_is_left_alone(server, executor, caches, app):
    """It may have no labels, another application's, or copies with another uid: the error says who owns it."""
    path = CONFIG_MAPS.path("shop", MANIFEST_OF_R)
    for marks in ({}, labels("shipments"), {**labels("orders", revision="r"), APP_UID_LABEL: "another"}):
        server.objects.pop(path, None)
        metadata = {"name": MANIFEST_OF_R, "namespace": "shop", "labels": marks}
        before = server.put(path, {"kind": "ConfigMap", "metadata": metadata})
        with pytest.raises(NameTakenError, match=f"ConfigMap {MANIFEST_OF_R}"):
            executor.do(Apply(manifest_of(app)), app)
        assert server.objects[path] == before


@pytest.mark.parametrize("uid", [{}, {APP_UID_LABEL: "its own"}])
def test_own_object_that_no_watch_has_reported_is_adopted(server, executor, caches, app, uid):
    """After a restart, or if an older operator without uids wrote it."""
    own = dict.fromkeys(uid, app["metadata"]["uid"])
    metadata = {"name": MANIFEST_OF_R, "namespace": "shop", "labels": {**labels("orders", revision="r"), **own}}
    server.put(CONFIG_MAPS.path("shop", MANIFEST_OF_R), {"kind": "ConfigMap", "metadata": metadata})
    executor.do(Apply({**manifest_of(app), "data": {"a": "b"}}), app)
    assert server.objects[CONFIG_MAPS.path("shop", MANIFEST_OF_R)]["data"] == {"a": "b"}


@pytest.mark.parametrize("successor", [False, True])
def test_object_that_was_replaced_since_it_was_seen_is_not_overwritten(server, executor, caches, app, successor):
    """The pass ends, and the object is removed from the cache."""
    seen = child(server, caches, CONFIG_MAPS, MANIFEST_OF_R)
    path = CONFIG_MAPS.path("shop", MANIFEST_OF_R)
    del server.objects[path]
    if successor:
        server.put(path, {"kind": "ConfigMap", "metadata": {"name": MANIFEST_OF_R, "namespace": "shop"}})
    before = dict(server.objects)
    with pytest.raises(StaleError):
        executor.do(Apply(manifest_of(app), seen["metadata"]["uid"]), app)
    assert server.objects == before
    assert caches[1].of_app("shop", "orders") == {}


def test_released_object_loses_the_uid_and_the_reference_to_the_application(server, executor, caches, app):
    """Other owners' labels and references stay."""
    other = {"kind": "Project", "name": "p", "uid": "p-1"}
    obj = child(server, caches, STATEFUL_SETS, "orders")
    uid = app["metadata"]["uid"]
    marked = {
        **obj["metadata"],
        "labels": {**LABELS, APP_UID_LABEL: uid},
        "ownerReferences": [owner_reference("orders", uid), other],
    }
    caches[1].put(STATEFUL_SETS, server.put(STATEFUL_SETS.path("shop", "orders"), {**obj, "metadata": marked}))
    executor.do(Release(Key("StatefulSet", "orders"), obj["metadata"]["uid"]), app)
    metadata = server.objects[STATEFUL_SETS.path("shop", "orders")]["metadata"]
    assert metadata["labels"] == LABELS
    assert metadata["ownerReferences"] == [other]
    with pytest.raises(StaleError):
        executor.do(Release(Key("StatefulSet", "orders"), "another"), app)


def test_pod_of_a_foreign_stateful_set_is_not_deleted(server, executor, caches, app):
    """No watch reports a StatefulSet without labels, so it is read; one that is gone protects nothing."""
    path = STATEFUL_SETS.path("shop", "orders")
    other = server.put(path, {"kind": "StatefulSet", "metadata": {"name": "orders", "namespace": "shop"}})
    pod = child(server, caches, PODS, "orders-0")
    owner = {"kind": "StatefulSet", "name": "orders", "uid": other["metadata"]["uid"], "controller": True}
    metadata = {**pod["metadata"], "ownerReferences": [owner]}
    caches[1].put(PODS, server.put(PODS.path("shop", "orders-0"), {**pod, "metadata": metadata}))
    action = Delete(Key("Pod", "orders-0"), pod["metadata"]["uid"])
    with pytest.raises(NameTakenError, match="Pod orders-0 belongs to StatefulSet orders"):
        executor.do(action, app)
    del server.objects[path]
    executor.do(action, app)
    assert PODS.path("shop", "orders-0") not in server.objects


def test_deleted_object_is_gone_for_the_next_pass(server, executor, caches, app):
    """Only the observed object is deleted, with its dependents in the background."""
    obj = child(server, caches, CONFIG_MAPS, "m")
    executor.do(Delete(Key("ConfigMap", "m"), obj["metadata"]["uid"]), app)
    assert caches[1].of_app("shop", "orders") == {}
    uid = obj["metadata"]["uid"]
    assert server.asked[-1][3] == {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}


def test_orphaning_leaves_the_dependents(server, executor, caches, app):
    """A StatefulSet that is replaced keeps its pods."""
    obj = child(server, caches, STATEFUL_SETS, "orders")
    executor.do(Delete(Key("StatefulSet", "orders"), obj["metadata"]["uid"], orphan=True), app)
    assert server.asked[-1][3]["propagationPolicy"] == "Orphan"


def test_deleting_succeeds_if_already_deleted(server, executor, caches, app):
    """Deleting again is not a failure."""
    obj = child(server, caches, CONFIG_MAPS, "m")
    server.objects.clear()
    executor.do(Delete(Key("ConfigMap", "m"), obj["metadata"]["uid"]), app)
    assert caches[1].of_app("shop", "orders") == {}


def test_another_object_of_the_name_is_not_deleted(server, executor, caches, app):
    """Somebody has recreated it since it was observed: the pass ends."""
    obj = child(server, caches, PODS, "orders-0")
    server.objects.pop(PODS.path("shop", "orders-0"))
    server.put(PODS.path("shop", "orders-0"), {"kind": "Pod", "metadata": {"name": "orders-0", "namespace": "shop"}})
    with pytest.raises(StaleError):
        executor.do(Delete(Key("Pod", "orders-0"), obj["metadata"]["uid"]), app)
    assert PODS.path("shop", "orders-0") in server.objects


def test_claim_grows(server, executor, caches, app):
    """Only its size is patched, and only on the claim that was observed."""
    obj = child(server, caches, CLAIMS, "state-orders-0", spec={"resources": {"requests": {"storage": "1Gi"}}})
    executor.do(ResizeClaim("state-orders-0", obj["metadata"]["uid"], "2Gi"), app)
    assert server.objects[CLAIMS.path("shop", "state-orders-0")]["spec"]["resources"]["requests"]["storage"] == "2Gi"
    with pytest.raises(StaleError):
        executor.do(ResizeClaim("state-orders-0", "another", "3Gi"), app)


def test_finalizer_is_set_and_removed_among_others(server, executor, caches, app):
    """Those of other tools stay."""
    server.put(APP_PATH, {**app, "metadata": {**app["metadata"], "finalizers": ["other/one"]}})
    caches[0].put(APPS, server.objects[APP_PATH])
    executor.do(SetFinalizer(True), server.objects[APP_PATH])
    assert server.objects[APP_PATH]["metadata"]["finalizers"] == ["other/one", FINALIZER]
    executor.do(SetFinalizer(False), caches[0].get(APPS, "shop", "orders"))
    assert server.objects[APP_PATH]["metadata"]["finalizers"] == ["other/one"]


def test_finalizer_of_a_changed_resource_ends_the_pass(server, executor, app):
    """The decision was about an older version."""
    server.put(APP_PATH, app)
    with pytest.raises(StaleError):
        executor.do(SetFinalizer(True), app)


def test_finalizer_of_a_resource_that_is_gone_is_removed(server, executor, caches, app):
    """Removing the finalizer of a resource that is gone is not a failure."""
    server.objects.clear()
    executor.do(SetFinalizer(False), app)
    assert caches[0].get(APPS, "shop", "orders") is None


def test_only_the_pod_that_was_seen_is_drained(server, executor, caches, app):
    """The pod gets an annotation and nothing else changes; another pod with the name would have other tasks."""
    obj = child(server, caches, PODS, "orders-0", status={"podIP": "127.0.0.1"})
    executor.do(DrainPod("orders-0", obj["metadata"]["uid"], 1700000000), app)
    served = server.objects[PODS.path("shop", "orders-0")]
    assert served["metadata"]["annotations"] == {DRAIN_ANNOTATION: "1700000000"}
    assert caches[1].get(PODS, "shop", "orders-0")["metadata"]["annotations"] == {DRAIN_ANNOTATION: "1700000000"}
    with pytest.raises(StaleError):
        executor.do(DrainPod("orders-0", "another", 1700000001), app)
    assert served["metadata"]["annotations"] == {DRAIN_ANNOTATION: "1700000000"}


def test_reset_changes_annotations_and_status_of_its_app(server, executor, caches, app):
    """Both are merge patches, only for the app that was observed."""
    server.put(APP_PATH, {**app, "status": {"stableRevision": "x", "replicas": 1}})
    uid = app["metadata"]["uid"]
    executor.patch_app("shop", "orders", PatchApp(uid, {"a": "b"}, {"stableRevision": None}))
    served = server.objects[APP_PATH]
    assert served["metadata"]["annotations"] == {"a": "b"}
    assert served["status"] == {"replicas": 1}
    with pytest.raises(StaleError):
        executor.patch_app("shop", "orders", PatchApp("another", {"a": "c"}))


def test_action_on_kafka_is_not_for_the_executor(executor, app):
    """A programming error is reported as such."""
    with pytest.raises(TypeError):
        executor.do(ProvisionTopics("{}", ("t",)), app)
