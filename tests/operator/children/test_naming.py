"""Names of children."""

import itertools

import pytest
from tests.operator.children.apps import FULL, SMALL, rendered, revision_of

from millrace_operator.children import naming
from millrace_operator.children.naming import REVISION_LABEL

LONGEST = "a" * 52
REVISION = "0123456789"
ENDINGS = ["", "-0", "-plan", "-rev", "-retained", f"-{REVISION}", f"-plan-{REVISION}", f"-rev-{REVISION}", "-d2113b"]
STEMS = ["x", "orders", "orders-of-all-shops-and-of-all-warehouse", "a" * 40, "a" * 41, LONGEST[:47], LONGEST]


def adversaries():
    """Return names of applications in one namespace, one of which looks like a child of another."""
    found = {f"{stem}{one}{other}" for stem in STEMS for one in ENDINGS for other in ENDINGS}
    found |= {f"{LONGEST[:-1]}b", "orders-of-all-shops-and-of-all-warehouses-in-europe"}
    return sorted(name for name in found if len(name) <= 52)


def children(app):
    """Return kind and name of everything that the operator and the controllers create for an application of this name."""
    specs = (SMALL, FULL, SMALL | {"networkPolicy": {"enabled": True}})
    found = {
        (item["kind"], item["metadata"]["name"])
        for spec in specs
        for item in rendered(revision_of(spec, name=app), spec)
    }
    found.add(("ConfigMap", naming.retained_config_map(app)))
    for index in (0, 1, 10):
        found |= {("Pod", naming.pod(app, index)), ("PersistentVolumeClaim", naming.claim(app, index))}
    return found


def test_children_of_two_applications_never_have_the_same_name():
    """Whatever applications in a namespace are called, no two of them need an object of the same kind and name."""
    owners = {}
    for app in adversaries():
        for child in children(app):
            assert owners.setdefault(child, app) == app, f"{child} is of {app} and of {owners[child]}"


def test_names_that_become_labels_fit():
    """For the longest name an application may have, names that Kubernetes copies into labels stay within 63 characters."""
    assert len(naming.plan_job(LONGEST, REVISION)) <= naming.LABEL_LENGTH
    assert len(LONGEST) <= naming.LABEL_LENGTH
    assert len(f"{LONGEST}-{REVISION}") <= naming.LABEL_LENGTH


@pytest.mark.parametrize("app", ["orders", LONGEST])
def test_every_child_is_known_by_its_name(app):
    """The operator recognises everything that it builds as an application's child."""
    for item in (item for spec in (SMALL, FULL) for item in rendered(revision_of(spec, name=app), spec)):
        revision = item["metadata"]["labels"].get(REVISION_LABEL)
        assert naming.is_child(app, item["kind"], item["metadata"]["name"], revision), item["kind"]


def test_other_names_are_not_those_of_children():
    """Neither a copy of a child with its labels nor a child of another revision or application is recognised."""
    kinds = ("ConfigMap", "Job", "NetworkPolicy", "Service", "ServiceAccount", "StatefulSet", "PodDisruptionBudget")
    others = ("orders-copy", f"orders-plan-{REVISION[::-1]}", "shipments", "orders.mine")
    for kind, name in itertools.product(kinds, others):
        assert not naming.is_child("orders", kind, name, REVISION)
