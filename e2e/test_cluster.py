"""The cluster provides what the other tests rely on: real pods, volumes, names and faults; and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import wait_until

from e2e.cluster import Cluster, ClusterError, cgroups
from e2e.cluster.leftovers import remove_leftovers
from e2e.cluster.machine import Machine, cable_index
from e2e.support.application import KUBECTL_PATIENCE, PATIENCE_S

_ROOT = Path(__file__).parents[1]
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _set(name, image, command, *, size="1Gi"):
    """Return a StatefulSet of one pod with a volume at /data, and its headless Service."""
    labels = {"set": name}
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "securityContext": _RESTRICTED,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"clusterIP": "None", "selector": labels, "ports": [{"port": 80}]},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": name},
            "spec": {
                "serviceName": name,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "securityContext": {
                            "runAsNonRoot": True,
                            "runAsUser": 65532,
                            "fsGroup": 65532,
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "containers": [container],
                    },
                },
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
            },
        },
    )


_PROGRAM = """
import socket, time
with open("/data/starts", "a") as starts:
    starts.write("x")
while True:
    try:
        print(socket.gethostbyname("pod-0.pod"), flush=True)
        break
    except OSError:  # a pod has a name once it is seen to be ready
        time.sleep(0.3)
time.sleep(3600)
"""


@pytest.fixture
def pod(cluster, images, namespaces):
    """Run a pod under Restricted rules that writes to its volume each time it starts."""
    namespace = namespaces(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    for each in _set("pod", images.apps, ["python", "-c", _PROGRAM]):
        each["metadata"]["namespace"] = namespace
        cluster.apply(each)
    cluster.kubectl("rollout", "status", "statefulset/pod", "-n", namespace, KUBECTL_PATIENCE)
    return namespace


def _pod(cluster, namespace):
    return json.loads(cluster.kubectl("get", "pod", "pod-0", "-n", namespace, "-o", "json"))


def _restarts(cluster, namespace):
    return _pod(cluster, namespace)["status"]["containerStatuses"][0]["restartCount"]


def _starts(cluster, namespace):
    return cluster.kubectl("exec", "pod-0", "-n", namespace, "--", "cat", "/data/starts", check=False)


@pytest.mark.thorough
def test_pod_writes_to_its_volume_and_finds_its_own_name(cluster, pod):
    """A non-root pod under Restricted rules has a writable volume and a name behind its headless Service."""
    address = wait_until(lambda: cluster.kubectl("logs", "pod-0", "-n", pod), "the pod's own address", PATIENCE_S)
    assert address.strip() == _pod(cluster, pod)["status"]["podIP"]
    assert _starts(cluster, pod) == "x"


@pytest.mark.thorough
def test_volume_outlives_its_pod_and_grows_with_its_claim(cluster, pod):
    """A deleted pod comes back with its data, and a claim that asks for more space gets it."""
    wait_until(lambda: _starts(cluster, pod) == "x", "the first start", PATIENCE_S)
    cluster.kubectl("delete", "pod", "pod-0", "-n", pod)
    wait_until(lambda: _starts(cluster, pod) == "xx", "the second start", PATIENCE_S)

    more = json.dumps({"spec": {"resources": {"requests": {"storage": "3Gi"}}}})
    cluster.kubectl("patch", "pvc", "data-pod-0", "-n", pod, "-p", more)
    query = ["get", "pvc", "data-pod-0", "-n", pod, "-o", "jsonpath={.status.capacity.storage}"]
    wait_until(lambda: cluster.kubectl(*query) == "3Gi", "the volume to grow", PATIENCE_S)


@pytest.mark.disturbs
@pytest.mark.thorough
def test_killed_container_restarts_only_while_a_kubelet_runs(cluster, pod):
    """With the kubelet dead nobody restarts a killed container; a new kubelet does."""
    wait_until(lambda: _starts(cluster, pod) == "x", "the first start", PATIENCE_S)
    cluster.node.kill_kubelet()
    try:
        assert not cluster.node.kubelet.running
        cluster.node.kill_container(_pod(cluster, pod)["status"]["containerStatuses"][0]["containerID"])
    finally:
        cluster.node.start_kubelet()
    wait_until(lambda: _starts(cluster, pod) == "xx", "the second start", PATIENCE_S)
    wait_until(lambda: _restarts(cluster, pod), "the restart to be told", PATIENCE_S)
    assert _restarts(cluster, pod) == 1


@pytest.mark.disturbs
@pytest.mark.thorough
def test_node_comes_back_from_a_reboot(cluster, pod):
    """After the kubelet, containerd and all containers are killed at once, pods run again with their data."""
    wait_until(lambda: _starts(cluster, pod) == "x", "the first start", PATIENCE_S)
    cluster.node.reboot()
    wait_until(lambda: _starts(cluster, pod) == "xx", "the second start", PATIENCE_S)


@pytest.mark.thorough
def test_pod_can_be_cut_off_from_a_port_and_frozen(cluster, pod):
    """A blocked pod cannot reach a server on the host until it is unblocked; a frozen pod does nothing until it is resumed."""
    wait_until(lambda: _starts(cluster, pod) == "x", "the first start", PATIENCE_S)
    address = _pod(cluster, pod)["status"]["podIP"]
    container = _pod(cluster, pod)["status"]["containerStatuses"][0]["containerID"]
    with socket.create_server((cluster.host_address, 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('{cluster.host_address}', {port}), 2); print('reached')"
        connect = ["exec", "pod-0", "-n", pod, "--", "python", "-c", program]
        assert cluster.kubectl(*connect) == "reached\n"
        cluster.node.block(address, port)
        assert "timed out" in _failure(cluster, *connect)
        cluster.node.unblock(address, port)
        assert cluster.kubectl(*connect) == "reached\n"

    cluster.node.pause_container(container)
    assert cluster.node.container_state(container) == "PAUSED"
    cluster.node.resume_container(container)
    assert cluster.node.container_state(container) == "RUNNING"
    assert cluster.kubectl("exec", "pod-0", "-n", pod, "--", "cat", "/data/starts") == "x"


def _failure(cluster, *arguments):
    with pytest.raises(ClusterError) as raised:
        cluster.kubectl(*arguments)
    return str(raised.value)


@pytest.mark.thorough
def test_api_server_comes_back_with_its_data(own_api_server):
    """A killed API server comes back with its data, and shares nothing with the cluster that has a node."""
    own_api_server.kubectl("create", "configmap", "kept")
    own_api_server.restart_api_server()
    assert "kept" in own_api_server.kubectl("get", "configmaps")
    assert not own_api_server.kubectl("get", "nodes")


def test_stopping_an_ended_machine_again_is_harmless(tmp_path):
    """This does not affect whoever has taken over its process id, its cable's name and its cgroup."""
    first = Machine.start(tmp_path / "first.log", owned=True)
    first.stop()
    second = Machine.start(tmp_path / "second.log", owned=True)
    try:
        first.stop()
        assert second.alive
        assert second.addresses.name in cgroups.names("millrace")
    finally:
        second.stop()


_OWNER = """
import sys, time
from pathlib import Path
from e2e.cluster import Cluster
cluster = Cluster.start(Path(sys.argv[1]), with_node=False)
print(cluster.machine.addresses.name, flush=True)
time.sleep(600)
"""


@pytest.mark.thorough
def test_cluster_ends_with_its_owner_process(api_server):
    """If the process that started a cluster is killed, nothing of the cluster remains once leftovers are removed."""
    with subprocess.Popen([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE) as ended:
        dead_pid = int(ended.stdout.read())
    directory = api_server.directory.with_name(f"millrace-e2e-{dead_pid}-x")
    command = [sys.executable, "-c", _OWNER, str(directory)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as owner:
        name = owner.stdout.readline().strip()
        assert re.fullmatch(r"millrace\d+", name)
        cluster = Cluster.find(directory)
        cable = cable_index(name)
        os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: not cluster.machine.alive, "the machine to end", PATIENCE_S)
    wait_until(lambda: cable_index(name) != cable, "its cable to go", PATIENCE_S)
    remove_leftovers()
    assert not directory.exists()
    assert cable_index(name) is not None or name not in cgroups.names("millrace"), (
        "unless another machine has its number"
    )
    assert api_server.machine.alive
