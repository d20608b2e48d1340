"""The NetworkPolicy of the pods."""

from tests.operator.children.apps import FULL, OPERATOR_NAMESPACE, full, program, small

from millrace_operator.children import headless_service, pod_template
from millrace_operator.children import network_policy as policy_of


def network_policy(app):
    """Return the policy that an operator in its own namespace makes."""
    return policy_of(app, OPERATOR_NAMESPACE)


def spec_of(**fields):
    """Return the spec of the policy of an application with some values of `spec.networkPolicy`."""
    return network_policy(small(networkPolicy={"enabled": True, **fields}))["spec"]


def test_operator_and_own_pods_may_ask():
    """The port of health and status is open to the application's own pods, and to pods of the operator in its namespace only."""
    (rule,) = spec_of()["ingress"]
    own, operator = rule["from"]
    assert own["podSelector"]["matchLabels"].items() <= pod_template(small())["metadata"]["labels"].items()
    assert operator == {  # one peer with both selectors: two peers would let in all of either
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": OPERATOR_NAMESPACE}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "millrace-operator"}},
    }
    (port,) = rule["ports"]
    assert port["port"] in {port["name"] for port in program(pod_template(small())["spec"])["ports"]}


def test_others_are_added():
    """Whom the spec names may ask too."""
    (rule,) = network_policy(full())["spec"]["ingress"]
    assert rule["from"][2:] == FULL["networkPolicy"]["ingressFrom"]


def test_pods_may_connect_everywhere_unless_told():
    """Without a list of destinations the policy says nothing about connections out."""
    assert spec_of()["policyTypes"] == ["Ingress"]
    assert "egress" not in spec_of()


def test_with_destinations_names_can_still_be_looked_up():
    """With a list of destinations, DNS and the own pods stay reachable, and else only what is listed."""
    rules = network_policy(full())["spec"]["egress"]
    assert [port["port"] for port in rules[0]["ports"]] == [53, 53]
    assert rules[1]["to"][0]["podSelector"]["matchLabels"] == headless_service(full())["spec"]["selector"]
    assert rules[2:] == FULL["networkPolicy"]["egress"]
    assert len(spec_of(egress=[])["egress"]) == 2
    assert "Egress" in spec_of(egress=[])["policyTypes"]
