"""The resources of containers."""

import pytest
from tests.operator.children.apps import program, small

from millrace_operator.children.pod import pod_template


def resources(**wanted):
    """Return the resources of the program's container."""
    return program(pod_template(small(podTemplate={"resources": wanted}))["spec"])["resources"]


def test_memory_is_always_limited():
    """By default the memory request equals the limit, and there is no CPU limit."""
    found = resources()
    assert found["limits"]["memory"] == found["requests"]["memory"]
    assert "cpu" not in found["limits"]


@pytest.mark.parametrize(
    ("wanted", "request_", "limit"),
    [
        ({"requests": {"memory": "2Gi"}}, "2Gi", "2Gi"),
        ({"limits": {"memory": "2Gi"}}, "2Gi", "2Gi"),
        ({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}, "1Gi", "2Gi"),
    ],
    ids=str,
)
def test_memory_is_completed(wanted, request_, limit):
    """A request alone is also the limit, a limit alone is also the request, and both together are kept."""
    found = resources(**wanted)
    assert (found["requests"]["memory"], found["limits"]["memory"]) == (request_, limit)


@pytest.mark.parametrize("limit", ["50m", "2"])
def test_request_of_cpu_is_never_more_than_its_limit(limit):
    """A CPU limit without a request is also the request, even if it is less than the default."""
    assert resources(limits={"cpu": limit})["requests"]["cpu"] == limit


def test_other_resources_are_handed_on():
    """Any other node resource may be requested."""
    assert resources(limits={"ephemeral-storage": "2048Mi"})["limits"]["ephemeral-storage"] == "2Gi"
