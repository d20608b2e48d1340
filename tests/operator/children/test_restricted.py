"""Pods are admitted where Pod Security level Restricted is enforced."""

import copy
import re
from pathlib import Path

import pytest
from tests.operator.children.apps import FULL, full, program, small
from tests.operator.children.restricted import violations

from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import pod_template

PODS = {
    "small": lambda: pod_template(small())["spec"],
    "full": lambda: pod_template(full())["spec"],
    "plan of small": lambda: plan_job(small())["spec"]["template"]["spec"],
    "plan of full": lambda: plan_job(full())["spec"]["template"]["spec"],
}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_pods_are_restricted(pod):
    """Nothing in a pod's spec breaks a rule, including the user's init containers and sidecars."""
    assert violations(pod()) == []


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_pods_go_further(pod):
    """The program cannot write to its root filesystem, and its pod gets no API token and no service environment variables."""
    spec = pod()
    assert program(spec)["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False


def _set(spec, path, value):
    changed = copy.deepcopy(spec)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hostNetwork",), True),
        (("volumes", 0), {"name": "host", "hostPath": {"path": "/"}}),
        (("securityContext", "runAsUser"), 0),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}),
        (("securityContext", "sysctls"), [{"name": "kernel.msgmax", "value": "1"}]),
        (("securityContext", "seLinuxOptions"), {"type": "spc_t"}),
        (("containers", 0, "securityContext"), {}),
        (("containers", 0, "securityContext", "privileged"), True),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True),
        (("containers", 0, "securityContext", "capabilities"), {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        (("containers", 0, "securityContext", "runAsNonRoot"), False),
        (("containers", 0, "securityContext", "procMount"), "Unmasked"),
        (("containers", 0, "securityContext", "appArmorProfile"), {"type": "Unconfined"}),
        (("containers", 0, "ports", 0, "hostPort"), 80),
        (("containers", 0, "livenessProbe", "httpGet", "host"), "10.0.0.1"),
    ],
    ids=str,
)
def test_the_rules_tell(path, value):
    """Each rule finds exactly the violation it is for."""
    assert len(violations(_set(pod_template(small())["spec"], path, value))) >= 1


def test_users_are_the_images_unless_named():
    """Pods run as the user of Millrace's images unless the spec names another."""
    context = pod_template(small())["spec"]["securityContext"]
    text = (Path(__file__).parents[3] / "Dockerfile").read_text()
    images = {int(number) for pair in re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE) for number in pair}
    assert {context[field] for field in ("runAsUser", "runAsGroup", "fsGroup")} == images
    wanted = FULL["podTemplate"]["securityContext"]
    assert pod_template(full())["spec"]["securityContext"].items() >= wanted.items()


def test_a_sidecars_own_security_context_is_kept():
    """A sidecar's own security settings are kept, even if a restricted namespace will reject them."""
    sidecar = {"name": "tool", "image": "tool:1", "securityContext": {"allowPrivilegeEscalation": True}}
    (_, container) = pod_template(small(podTemplate={"sidecars": [sidecar]}))["spec"]["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is True
    assert container["securityContext"]["runAsNonRoot"] is True
