"""The NetworkPolicy of the pods."""

from tests.operator.children.apps import FULL, OPERATOR_NAMESPACE, full, program, small

from millrace_operator.children.auxiliary_objects import headless_service
from millrace_operator.children.network_policy import network_policy as policy_of
from millrace_operator.children.pod import pod_template


def network_policy(app):
    """Return the policy that an operator in its own namespace makes."""
    return policy_of(app, OPERATOR_NAMESPACE)


def spec_of(**fields):
    """Return the spec of the policy of an application with some values of `spec.networkPolicy`."""
    return network_policy(small(networkPolicy={"enabled": True, **fields}))["spec"]


def test_operator_and_own_pods_may_ask():
    """Pods can reach each other; only operator pods in the operator's namespace can reach their health and status port.

    This is the default.
    """
    assert network_policy(small())["spec"] == spec_of()
    among_themselves, rule = spec_of()["ingress"]
    (own,) = among_themselves["from"]
    assert own["podSelector"]["matchLabels"].items() <= pod_template(small())["metadata"]["labels"].items()
    assert "ports" not in among_themselves
    (operator,) = rule["from"]
    assert operator == {  # one peer with both selectors: two peers would let in all of either
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": OPERATOR_NAMESPACE}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "millrace-operator"}},
    }
    (port,) = rule["ports"]
    assert port["port"] in {port["name"] for port in program(pod_template(small())["spec"])["ports"]}


def test_others_are_added():
    """Peers named in the spec may connect too, to that port only."""
    _, rule, _ = network_policy(full())["spec"]["ingress"]
    assert rule["from"][1:] == FULL["networkPolicy"]["ingressFrom"]
    assert [port["port"] for port in rule["ports"]] == ["http"]


def test_metrics_can_be_scraped_unless_it_is_said_by_whom():
    """With a PodMonitor everyone may reach the metrics port, and no other, until the spec says who may."""
    monitored = {"metrics": {"podMonitor": {"enabled": True}}}
    _, rule = network_policy(small(observability=monitored))["spec"]["ingress"]
    assert "from" not in rule
    assert [port["port"] for port in rule["ports"]] == ["http"]
    _, rule = network_policy(small(observability=monitored, networkPolicy={"ingressFrom": []}))["spec"]["ingress"]
    assert len(rule["from"]) == 1


def test_ports_of_the_users_own_have_rules_of_their_own():
    """A server for store queries is opened without opening anything else."""
    rules = [{"from": [{"namespaceSelector": {}}], "ports": [{"port": 7070, "protocol": "TCP"}]}]
    assert spec_of(ingress=rules)["ingress"] == [*spec_of()["ingress"], *rules]


def test_pods_may_connect_everywhere_by_default():
    """Without a list of destinations the policy does not restrict egress."""
    assert spec_of()["policyTypes"] == ["Ingress"]
    assert "egress" not in spec_of()


def test_with_destinations_names_can_still_be_looked_up():
    """With a list of destinations, only those, DNS and the application's own pods are reachable."""
    rules = network_policy(full())["spec"]["egress"]
    assert [port["port"] for port in rules[0]["ports"]] == [53, 53]
    assert rules[1]["to"][0]["podSelector"]["matchLabels"] == headless_service(full())["spec"]["selector"]
    assert rules[2:] == FULL["networkPolicy"]["egress"]
    assert len(spec_of(egress=[])["egress"]) == 2
    assert "Egress" in spec_of(egress=[])["policyTypes"]
