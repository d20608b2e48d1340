"""The plan Job."""

import pytest
from tests.operator.children.apps import OPERATOR_NAMESPACE, full, program, small

from millrace_operator.children.network_policy import network_policy, plan_network_policy
from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import pod_template


def test_it_plans_the_revisions_manifest():
    """It runs the image's own `millrace plan` on the revision's manifest."""
    spec = plan_job(full())["spec"]["template"]["spec"]
    container = program(spec)
    assert [*container["command"], *container["args"]] == [
        *("millrace", "plan", "-f", "/etc/millrace/app/streamsapp.yaml", "--json")
    ]
    assert container["image"] == program(pod_template(full())["spec"])["image"]
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "app")
    assert volume["configMap"]["name"] == "orders-rev-0123456789"


def test_it_ends():
    """It gets two attempts and a deadline, and stays until the operator has read it."""
    spec = plan_job(small())["spec"]
    assert spec["backoffLimit"] == 1
    assert spec["activeDeadlineSeconds"] > 0
    assert "ttlSecondsAfterFinished" not in spec
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 1


def test_its_error_can_be_read():
    """If it fails, the end of its log becomes the termination message."""
    assert program(plan_job(small())["spec"]["template"]["spec"])["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_it_is_limited():
    """It may use one CPU, the program's memory, and a bounded folder for temporary files."""
    spec = plan_job(full())["spec"]["template"]["spec"]
    assert program(spec)["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert plan_job(full())["spec"]["template"]["metadata"]["annotations"]["example.com/owner"] == "orders"
    (folder,) = (volume for volume in spec["volumes"] if volume["name"] == "tmp")
    assert folder["emptyDir"]["sizeLimit"]


@pytest.mark.parametrize(
    ("programs", "request_"), [("16Gi", "512Mi"), ("1e9", "512Mi"), ("256Mi", "256Mi"), ("0.5Gi", "512Mi")]
)
def test_it_finds_room_on_a_full_node(programs, request_):
    """Its requests are small, whatever the program requests: it holds no state."""
    app = small(podTemplate={"resources": {"requests": {"cpu": "4", "memory": programs}}})
    requests = program(plan_job(app)["spec"]["template"]["spec"])["resources"]["requests"]
    assert requests == {"cpu": "100m", "memory": request_}


def test_topology_may_depend_on_variables_and_configuration():
    """The user's variables, ConfigMaps and empty folders are available, as they are to the program."""
    spec = plan_job(full())["spec"]["template"]["spec"]
    assert {variable["name"] for variable in program(spec)["env"]} == {"REGION", "EMPTY", "FEATURE", "HOST_IP"}
    assert {mount["mountPath"] for mount in program(spec)["volumeMounts"]} == {"/etc/millrace/app", "/tables", "/tmp"}


def test_plan_job_has_no_state_and_no_sidecars():
    """It mounts no claim, and runs neither the user's sidecars nor init containers."""
    spec = plan_job(full())["spec"]["template"]["spec"]
    assert len(spec["containers"]) == 1
    assert "initContainers" not in spec
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in program(spec)["volumeMounts"]} <= volumes


def test_no_cloud_gives_it_the_identity_of_the_pods():
    """It may use their service account, to pull its image; the clouds' webhooks are told to skip it."""
    annotations = plan_job(full())["spec"]["template"]["metadata"]["annotations"]
    assert annotations["eks.amazonaws.com/skip-containers"] == "millrace"
    assert annotations["azure.workload.identity/skip-containers"] == "millrace"


def test_its_pods_are_not_the_applications():
    """The selector of an application's pods does not select those of its plan, or the other way round."""
    of_plan = plan_job(full())["spec"]["template"]["metadata"]["labels"]
    running = network_policy(full(), OPERATOR_NAMESPACE)["spec"]["podSelector"]["matchLabels"]
    assert not running.items() <= of_plan.items()
    planning = plan_network_policy(full())["spec"]["podSelector"]["matchLabels"]
    assert planning.items() <= of_plan.items()
    assert not planning.items() <= pod_template(full())["metadata"]["labels"].items()


def test_it_has_no_network():
    """Its policy allows no connection in or out."""
    spec = plan_network_policy(full())["spec"]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
    assert "egress" not in spec
    assert "ingress" not in spec


def test_policies_can_be_off():
    """Policies exist unless the spec disables them."""
    assert network_policy(small(), OPERATOR_NAMESPACE) is not None
    assert plan_network_policy(small()) is not None
    off = small(networkPolicy={"enabled": False})
    assert network_policy(off, OPERATOR_NAMESPACE) is None
    assert plan_network_policy(off) is None
