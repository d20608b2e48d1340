"""The cache that is filled by watches, lists and the operator's own writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_operator.cluster.cache import Cache
from millrace_operator.cluster.kinds import BACKFILLS, CONFIG_MAPS, PODS, RESETS
from millrace_operator.model import Key, ResourceRef


def pod(name, version, app="orders", namespace="shop", **fields):
    """A pod as a watch delivers it."""
    labels = {"streams.millrace.dev/app": app}
    metadata = {"name": name, "namespace": namespace, "resourceVersion": str(version), "uid": name, "labels": labels}
    return {"metadata": {**metadata, "managedFields": [{}]}, **fields}


def names(cache, app="orders", namespace="shop"):
    """The names of an app's objects."""
    return sorted(key.name for key in cache.of_app(namespace, app))


def test_objects_are_found_by_their_app():
    """Objects of other apps and namespaces are excluded; kind and apiVersion, which lists leave out, are added."""
    cache = Cache()
    for obj in (pod("a", 1), pod("b", 2, app="other"), pod("c", 3, namespace="bank")):
        cache.put(PODS, obj)
    assert names(cache) == ["a"]
    found = cache.of_app("shop", "orders")[Key("Pod", "a")]
    assert (found["kind"], found["apiVersion"]) == ("Pod", "v1")
    assert "managedFields" not in found["metadata"]


def test_older_version_does_not_replace_a_newer_one():
    """The answer to a write may arrive before the watch's event for an older version."""
    cache = Cache()
    assert cache.put(PODS, pod("a", 9, x=1))
    assert not cache.put(PODS, pod("a", 8, x=2))
    assert not cache.put(PODS, pod("a", 9, x=3))
    assert cache.get(PODS, "shop", "a")["x"] == 1


def test_deleted_object_does_not_come_back_with_an_old_answer():
    """Versions from before the deletion are known to be gone; a recreated object is not."""
    cache = Cache()
    cache.put(PODS, pod("a", 1))
    cache.remove(PODS, pod("a", 5))
    assert not cache.put(PODS, pod("a", 4))
    assert names(cache) == []
    assert cache.put(PODS, pod("a", 6))


def test_late_deletion_event_does_not_remove_a_new_object_of_the_name():
    """A StatefulSet's pod is recreated under the same name."""
    cache = Cache()
    cache.put(PODS, pod("a", 9))
    cache.remove(PODS, pod("a", 5))
    assert names(cache) == ["a"]


def test_list_finds_what_the_watch_has_missed():
    """Objects missing from a list are gone, unless they are newer; other kinds and namespaces are not affected."""
    cache = Cache()
    for obj in (pod("gone", 1), pod("stays", 2), pod("newer", 30), pod("elsewhere", 1, namespace="bank")):
        cache.put(PODS, obj)
    cache.put(CONFIG_MAPS, pod("map", 1))
    changed = cache.replace(PODS, [pod("stays", 2), pod("missed", 15)], 20, "shop")
    assert changed == {ResourceRef("StreamsApp", "shop", "orders")}
    assert names(cache) == ["map", "missed", "newer", "stays"]
    assert names(cache, namespace="bank") == ["elsewhere"]


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        (RESETS, {ResourceRef("StreamsReset", "shop", "again")}),
        (BACKFILLS, {ResourceRef("StreamsBackfill", "shop", "again"), ResourceRef("StreamsApp", "shop", "orders")}),
    ],
)
def test_list_finds_operations_before_the_watch(kind, changed):
    """They are worked on by their own names, as the watch will not tell them any more; a backfill's app stops or continues."""
    cache, metadata = Cache(), {"name": "again", "namespace": "shop", "resourceVersion": "15", "uid": "u"}
    operation = {"metadata": metadata, "spec": {"appRef": {"name": "orders"}}}
    assert cache.replace(kind, [operation], 20) == changed
    assert cache.replace(kind, [operation], 21) == set()
    assert cache.replace(kind, [], 22) == changed


def test_list_of_what_is_known_changes_nothing():
    """Lists that find nothing new start no passes."""
    cache = Cache()
    cache.put(PODS, pod("a", 1))
    assert cache.replace(PODS, [pod("a", 1)], 20) == set()


def test_object_that_changes_its_app_moves():
    """A label may be edited."""
    cache = Cache()
    cache.put(PODS, pod("a", 1))
    cache.put(PODS, pod("a", 2, app="other"))
    assert (names(cache), names(cache, app="other")) == ([], ["a"])


@given(st.permutations(range(1, 8)), st.integers(1, 7))
def test_order_of_news_does_not_matter(order, deleted_at):
    """In whatever order versions and the deletion arrive, the newest wins."""
    cache = Cache()
    for version in order:
        if version == deleted_at:
            cache.remove(PODS, pod("a", version))
        else:
            cache.put(PODS, pod("a", version))
    found = cache.get(PODS, "shop", "a")
    assert (found is None) == (deleted_at == 7)
    if found is not None:
        assert found["metadata"]["resourceVersion"] == "7"
