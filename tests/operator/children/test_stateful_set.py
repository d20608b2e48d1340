"""The StatefulSet, the disruption budget and the service account."""

import pytest
from tests.operator.children.apps import full, small

from millrace_operator.children import naming
from millrace_operator.children.auxiliary_objects import disruption_budget, service_account
from millrace_operator.children.pod import pod_template
from millrace_operator.children.stateful_set import stateful_set


def test_pods_are_only_replaced_by_the_operator():
    """The controller starts pods in parallel, replaces none and deletes no claim."""
    spec = stateful_set(full(), 3)["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}


def test_replicas_are_those_asked_for():
    """The number of pods is an argument and may be zero; the spec's replicas are ignored."""
    assert stateful_set(full(), 0)["spec"]["replicas"] == 0
    assert stateful_set(full(), 7)["spec"]["replicas"] == 7


def test_selector_selects_the_template():
    """The selector is part of the pods' labels and contains no revision, because it cannot be changed."""
    spec = stateful_set(full(), 1)["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert not [label for label in spec["selector"]["matchLabels"] if "revision" in label]
    assert spec["template"] == pod_template(full())


def test_claims_have_the_size_and_class_of_the_spec():
    """A claim requests the spec's size, in the server's notation, and a class only if the spec has one."""
    (claim,) = stateful_set(full(), 1)["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    (claim,) = stateful_set(small(storage={"size": "1024Mi"}), 1)["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
    assert "storageClassName" not in claim["spec"]
    assert claim["metadata"]["name"] == naming.STATE_VOLUME


def test_claims_do_not_follow_the_revision():
    """Nothing in the claim template, which cannot be changed, depends on the revision."""
    one = full()
    other = type(one)(
        one.namespace, one.name, "abcdef0123", small(storage={"size": "10Gi", "storageClassName": "fast"}).spec
    )
    assert (
        stateful_set(one, 1)["spec"]["volumeClaimTemplates"] == stateful_set(other, 1)["spec"]["volumeClaimTemplates"]
    )


def test_service_account_has_no_token():
    """An application's own account gives pods no token; a user's account is used but not created."""
    account = service_account(small())
    assert account["automountServiceAccountToken"] is False
    assert pod_template(small())["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert service_account(full()) is None
    assert pod_template(full())["spec"]["serviceAccountName"] == "orders-identity"


@pytest.mark.parametrize(("written", "kept"), [(1, 1), ("2", 2), ("25%", "25%")])
def test_disruption_budget_counts_what_may_be_away(written, kept):
    """A number stays a number and a percentage a string, as the API server stores them."""
    budget = disruption_budget(small(podDisruptionBudget={"maxUnavailable": written}))
    assert budget["spec"]["maxUnavailable"] == kept
    assert "minAvailable" not in budget["spec"]


def test_disruption_budget_can_be_off():
    """There is a disruption budget by default, and none if the spec disables it."""
    assert disruption_budget(small(podDisruptionBudget={"enabled": False})) is None
    assert disruption_budget(small())["spec"]["maxUnavailable"] == 1
