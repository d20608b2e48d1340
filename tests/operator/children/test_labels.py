"""Labels of children."""

import re

import pytest
from tests.operator.children.apps import FULL, SMALL, rendered, revision_of

VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
LONGEST = "a" + 50 * "-" + "z"
NAMES = ["a", "orders", LONGEST]


def objects(name):
    """Return all children of applications with a given name."""
    return [item for spec in (SMALL, FULL) for item in rendered(revision_of(spec, name=name), spec)]


def metadata_in(value):
    """Yield the metadata of an object and of its templates."""
    if isinstance(value, dict):
        if "labels" in value and "podMetricsEndpoints" not in value:
            yield value
        for item in value.values():
            yield from metadata_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from metadata_in(item)


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_valid(name):
    """The API server accepts every label of every child, even with the longest name."""
    found = [metadata for item in objects(name) for metadata in metadata_in(item)]
    assert found
    for metadata in found:
        for value in metadata["labels"].values():
            assert len(value) <= 63
            assert VALUE.fullmatch(value)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_valid(name):
    """The API server accepts every child's name."""
    for item in objects(name):
        limit, pattern = (253, SUBDOMAIN) if item["kind"] in {"ConfigMap", "NetworkPolicy"} else (63, NAME)
        assert len(item["metadata"]["name"]) <= limit
        assert pattern.fullmatch(item["metadata"]["name"])


def test_children_are_found_by_their_application():
    """Every child has the label by which it is found, is in the application's namespace, and has no owner."""
    for item in objects("orders"):
        assert item["metadata"]["labels"]["streams.millrace.dev/app"] == "orders"
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "millrace-operator"
        assert item["metadata"]["namespace"] == "shop"
        assert "ownerReferences" not in item["metadata"]


def test_no_two_children_are_the_same_object():
    """Kind and name identify a child."""
    keys = [(item["kind"], item["metadata"]["name"]) for item in rendered(revision_of(FULL), FULL)]
    assert len(set(keys)) == len(keys)


def test_monitors_labels_are_added():
    """The labels by which Prometheus selects a PodMonitor are added to the operator's."""
    (monitor,) = (item for item in rendered(revision_of(FULL), FULL) if item["kind"] == "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["metadata"]["labels"]["streams.millrace.dev/app"] == "orders"
