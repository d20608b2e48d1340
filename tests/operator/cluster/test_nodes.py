"""Which nodes are looked at, and when a pod counts as lost with its node."""

import pytest

from millrace_operator.cluster.nodes import Nodes
from millrace_operator.model import Key, SeenNode

POD = "/api/v1/namespaces/shop/pods/orders-0"
NODE = "/api/v1/nodes/n1"
ZONE = "topology.kubernetes.io/zone"


def pod(server, *, ready=False, wants="", told=None, **metadata):
    """A pod on node n1, as the API has it."""
    annotations = {} if told is None else {"annotations": {"streams.millrace.dev/node-labels": told}}
    labels = {"app.kubernetes.io/component": "runtime"}
    variables = [{"name": "MILLRACE_NODE_LABELS", "value": wants}] if wants else []
    item = {
        "metadata": {"name": "orders-0", "labels": labels, **annotations, **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": "millrace", "env": variables}]},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }
    return server.put(POD, item)


def node(server, *, ready=True, taint=None, labels=None):
    """Put node n1 into the API."""
    taints = [{"key": taint, "effect": "NoExecute"}] if taint else []
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}
    server.put(NODE, {"metadata": {"name": "n1", "labels": labels or {}}, "spec": {"taints": taints}, "status": status})


def seen(requests, *pods):
    """Return what is seen of the nodes of some pods."""
    return Nodes(requests, clock=iter(range(1000)).__next__).of("shop", {Key("Pod", "orders-0"): item for item in pods})


@pytest.mark.parametrize("given", [{"ready": True}, {"ready": True, "wants": ZONE, "told": "{}"}])
def test_a_healthy_pod_costs_no_request(server, requests, given):
    """A node is read only for pods that are not ready, or still have to be told where they run."""
    node(server)
    assert seen(requests, pod(server, **given)) == ({}, frozenset())
    assert [path for _, path, *_ in server.asked if path == NODE] == []


def test_a_node_is_read_for_a_pod_that_wants_its_labels(server, requests):
    """Its labels are those of the node."""
    node(server, labels={ZONE: "a"})
    assert seen(requests, pod(server, ready=True, wants=ZONE)) == (
        {"n1": SeenNode({ZONE: "a"}, ready=True)},
        frozenset(),
    )


def test_a_node_that_does_not_answer_has_lost_nothing(server, requests):
    """Its pods may still be running."""
    node(server, ready=False, taint="node.kubernetes.io/unreachable")
    assert seen(requests, pod(server)) == ({"n1": SeenNode({}, ready=False)}, frozenset())


def test_pods_of_a_node_out_of_service_are_lost(server, requests):
    """With the taint by which an administrator says so; also those that Kubernetes is deleting, although they were ready."""
    node(server, ready=False, taint="node.kubernetes.io/out-of-service")
    item = pod(server, ready=True, deletionTimestamp="2026-01-01T00:00:00Z")
    assert seen(requests, item)[1] == {item["metadata"]["uid"]}


def test_pods_of_a_deleted_node_are_lost(server, requests):
    """A Node that was deleted does not come back with its pods."""
    item = pod(server)
    assert seen(requests, item) == ({}, frozenset({item["metadata"]["uid"]}))


def test_a_pod_that_was_replaced_is_not_reported_as_lost(server, requests):
    """The members under its name may be its successor's, which the caches do not know yet."""
    item = pod(server)
    server.objects[POD] = {**item, "metadata": {**item["metadata"], "uid": "successor"}}
    assert seen(requests, item)[1] == frozenset()
    del server.objects[POD]
    assert seen(requests, item)[1] == frozenset()


def test_without_the_right_to_read_nodes_nothing_is_known(server, requests):
    """A refusal is not an absence: no pod counts as lost."""
    server.failures = [(403, "Forbidden")]
    assert seen(requests, pod(server)) == ({}, frozenset())


@pytest.mark.parametrize(("status", "asked"), [(403, 1), (500, 2)])
def test_only_a_refusal_is_remembered_for_long(server, requests, status, asked):
    """Whoever grants the right can wait, but a hiccup of the API server must not hide a lost node for minutes."""
    node(server, taint="node.kubernetes.io/out-of-service")
    item, nodes = pod(server), Nodes(requests, clock=iter(range(1000)).__next__)
    server.failures = [(status, "Failed")]
    assert nodes.of("shop", {Key("Pod", "orders-0"): item})[1] == frozenset()
    assert len(nodes.of("shop", {Key("Pod", "orders-0"): item})[1]) == asked - 1
    assert len([path for _, path, *_ in server.asked if path == NODE]) == asked
