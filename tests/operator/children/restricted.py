"""The rules of Kubernetes' Pod Security Standards, levels Baseline and Restricted, for Linux pods."""

from collections.abc import Iterator, Mapping
from typing import Any

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SELINUX_TYPES = {"container_t", "container_init_t", "container_kvm_t", "container_engine_t", ""}
SAFE_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
}


def violations(spec: Mapping[str, Any]) -> list[str]:
    """Return what in a pod's spec violates Restricted."""
    return [*_of_pod(spec), *(found for container in _containers(spec) for found in _of_container(spec, container))]


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field, ())


def _of_pod(spec: Mapping[str, Any]) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", ()):
        kinds = volume.keys() - {"name"}
        if not kinds or not kinds <= VOLUMES:
            yield f"volume {volume['name']}"
    context = spec.get("securityContext", {})
    yield from _of_context(context, "pod")
    for sysctl in context.get("sysctls", ()):
        if sysctl["name"] not in SAFE_SYSCTLS:
            yield f"sysctl {sysctl['name']}"


def _of_container(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    name, pod = container["name"], spec.get("securityContext", {})
    context = container.get("securityContext", {})
    yield from _of_context(context, name)
    if context.get("privileged"):
        yield f"{name}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()) or not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities"
    if context.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    if not context.get("runAsNonRoot", pod.get("runAsNonRoot", False)):
        yield f"{name}: runAsNonRoot"
    profile = context.get("seccompProfile", pod.get("seccompProfile", {}))
    if profile.get("type") not in {"RuntimeDefault", "Localhost"}:
        yield f"{name}: seccompProfile"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield f"{name}: hostPort"
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if any(container.get(probe, {}).get(kind, {}).get("host") for kind in ("httpGet", "tcpSocket")):
            yield f"{name}: {probe} host"


def _of_context(context: Mapping[str, Any], where: str) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield f"{where}: runAsUser"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield f"{where}: hostProcess"
    if context.get("appArmorProfile", {"type": "RuntimeDefault"})["type"] not in {"RuntimeDefault", "Localhost"}:
        yield f"{where}: appArmorProfile"
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type", "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{where}: seLinuxOptions"
