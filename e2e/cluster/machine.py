"""A separate machine for the cluster inside this one: a network, a mount and a process namespace.

Its first process is `pause`, which only reaps. When it ends, the kernel ends every process in the machine, and with the last of
them the mounts, interfaces and iptables rules disappear. So a single kill takes everything down, in any state. If a machine has
an owner, the kernel ends the machine when the owner dies, however suddenly.

A cable connects the host to the machine. Each machine has a number, which determines the cable's name and the machine's addresses
(the first one has 10.200.0.0/16, the second 10.201.0.0/16, …). Whoever creates the cable owns the number.
"""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tests.waiting import wait_until

from e2e.cluster import cgroups, tools
from e2e.cluster.errors import ClusterError

_FIRST_OCTET = 200
_MACHINES = 32
_OWN_DIRECTORIES = ("/run", "/var/log", "/var/lib/cni")
"""Where the node's programs insist on writing: the machine has its own, in memory."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The networks that follow from a machine's number."""

    number: int

    @property
    def name(self) -> str:
        """The name of the host's end of the cable, and of the node's cgroup."""
        return f"millrace{self.number}"

    @property
    def network(self) -> str:
        """The whole network of the machine."""
        return f"10.{_FIRST_OCTET + self.number}.0.0/16"

    @property
    def host(self) -> str:
        """The host's end of the cable: where pods can reach servers on the host."""
        return f"10.{_FIRST_OCTET + self.number}.255.1"

    @property
    def node(self) -> str:
        """The machine's end of the cable: the node and its API server."""
        return f"10.{_FIRST_OCTET + self.number}.255.2"

    @property
    def pods(self) -> str:
        """The range of pods' addresses."""
        return f"10.{_FIRST_OCTET + self.number}.0.0/17"

    @property
    def services(self) -> str:
        """The range of services' addresses."""
        return f"10.{_FIRST_OCTET + self.number}.128.0/18"

    def service(self, number: int) -> str:
        """Return the address of a service by its number: 1 is the API, 10 the name server."""
        return str(ipaddress.ip_network(self.services)[number])


@dataclass(frozen=True, slots=True)
class Machine:
    """A running machine; it can be saved to a file and found again."""

    addresses: Addresses
    holder_pid: int
    """The process outside that ends with the machine, and ends the machine."""
    init_pid: int
    """The first process inside, by the host's process id."""
    init_started: str
    """Its start time, in ticks since boot: together they identify the process."""

    @classmethod
    def start(cls, log: Path, *, owned: bool) -> Self:
        """Start a machine and plug in its cable.

        Args:
            log: Receives the output of the namespaces' own programs.
            owned: Whether it ends with the thread of this process that starts it.

        Raises:
            ClusterError: All numbers are taken, or the kernel does not allow it.
        """
        command = ["setpriv", "--pdeathsig", "KILL"] if owned else []
        command += ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command += ["--propagation", "private", str(tools.path("pause"))]
        with log.open("ab") as output:
            holder = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        try:
            init = wait_until(
                lambda: _pause_under(holder.pid),
                lambda: f"the machine's first process. {log.read_text()}",
                60,
                error=ClusterError,
            )
            _outliving.append(holder)
            addresses = _plug_in(init)
            machine = cls(addresses, holder.pid, init, _start_time(init) or "")
            machine._furnish()
        except BaseException:
            holder.kill()
            holder.wait()
            raise
        return machine

    @classmethod
    def load(cls, file: Path) -> Self | None:
        """Return the machine described in a file, if it is running."""
        try:
            data = json.loads(file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        machine = cls(Addresses(**data.pop("addresses")), **data)
        return machine if machine.alive else None

    def save(self, file: Path) -> None:
        """Write what `load` needs to a file."""
        file.write_text(json.dumps(asdict(self)))

    @property
    def alive(self) -> bool:
        """Whether the first process is running."""
        return _start_time(self.init_pid) == self.init_started

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs another one inside."""
        return ["nsenter", "--target", str(self.init_pid), "--net", "--mount", "--pid", "--", *arguments]

    def run(self, *arguments: str, check: bool = True, timeout_s: float = 120.0) -> str:
        """Run a command inside and return its standard output.

        Raises:
            ClusterError: It failed, and `check` was asked for.
        """
        return _run(self.command(arguments), check=check, timeout_s=timeout_s)

    def spawn(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command inside; return the process outside that waits for it."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        _waiting.setdefault(self.holder_pid, []).append(process)
        return process

    def connect(self, other: Machine) -> None:
        """Connect another machine: their nodes, and the pods of both, can reach each other."""
        ends = (f"to{other.addresses.number}", f"to{self.addresses.number}")
        here, there = (
            ("name", end, "netns", str(each.init_pid)) for end, each in zip(ends, (self, other), strict=True)
        )
        _run(["ip", "link", "add", *here, "type", "veth", "peer", *there])
        for machine, end, far in zip((self, other), ends, (other.addresses, self.addresses), strict=True):
            machine.run("ip", "address", "add", f"{machine.addresses.node}/32", "dev", end)
            machine.run("ip", "link", "set", end, "up")
            machine.run("ip", "route", "add", far.node, "dev", end)
            machine.run("ip", "route", "add", far.pods, "via", far.node, "dev", end)

    def stop(self) -> None:
        """Stop everything inside and wait until it is gone; if it had already ended, another machine may have its number."""
        cable = None
        if self.alive:
            cable = cable_index(self.addresses.name)
            os.kill(self.init_pid, signal.SIGKILL)
        for holder in [process for process in _outliving if process.pid == self.holder_pid]:
            holder.wait()
            _outliving.remove(holder)
        for process in _waiting.pop(self.holder_pid, ()):
            process.wait()
        wait_until(lambda: not self.alive, "the machine's processes to end", 120, error=ClusterError)
        wait_until(
            lambda: cable is None or cable_index(self.addresses.name) != cable,
            "the machine's cable to go",
            120,
            error=ClusterError,
        )
        if cable_index(self.addresses.name) is None:  # otherwise another machine has the number
            cgroups.remove(self.addresses.name)

    def _furnish(self) -> None:
        """Give the machine its own directories, and a working network stack."""
        Path("/var/lib/cni").mkdir(parents=True, exist_ok=True)
        for directory in _OWN_DIRECTORIES:
            self.run("mount", "-t", "tmpfs", "tmpfs", directory)
        self.run("sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
        cgroups.remove(self.addresses.name)
        cgroups.create(self.addresses.name)
        _raise_inotify_limit()


def numbers_in_use() -> frozenset[str]:
    """Return the names of the machines running on this host."""
    return frozenset(name for name in (Addresses(number).name for number in range(_MACHINES)) if cable_index(name))


_outliving: list[subprocess.Popen[bytes]] = []
"""Children that may outlive this process, kept so that Python does not warn when they are dropped."""
_waiting: dict[int, list[subprocess.Popen[bytes]]] = {}
"""By holder: processes that wait for processes inside, to be reaped when the machine ends."""


def _plug_in(init: int) -> Addresses:
    taken = _networks_in_use()
    for addresses in map(Addresses, range(_MACHINES)):
        if any(network.overlaps(ipaddress.ip_network(addresses.network)) for network in taken):
            continue
        name, inside = addresses.name, ["nsenter", "--target", str(init), "--net", "--", "ip"]
        cable = ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(init)]
        if subprocess.run(cable, capture_output=True, check=False).returncode:
            if cable_index(name):
                continue
            _run(cable)
        _run(["ip", "address", "add", f"{addresses.host}/30", "dev", name])
        _run(["ip", "link", "set", name, "up"])
        _run([*inside, "link", "set", "lo", "up"])
        _run([*inside, "address", "add", f"{addresses.node}/30", "dev", "eth0"])
        _run([*inside, "link", "set", "eth0", "up"])
        _run([*inside, "route", "add", "default", "via", addresses.host])
        for network in (addresses.pods, addresses.services):
            _run(["ip", "route", "add", network, "via", addresses.node, "dev", name])
        return addresses
    raise ClusterError(f"{_MACHINES} clusters run already, or their networks are in use: stop one")


def _networks_in_use() -> list[ipaddress.IPv4Network]:
    routes = json.loads(_run(["ip", "-4", "-json", "route", "show", "table", "all"]) or "[]")
    own = {Addresses(number).name for number in range(_MACHINES)}
    found = (route["dst"] for route in routes if route.get("dev") not in own and route["dst"] != "default")
    return [ipaddress.IPv4Network(destination, strict=False) for destination in found]


def cable_index(name: str) -> str | None:
    """Return the kernel's number of a cable, which is never reused; None if there is no such cable."""
    try:
        return Path("/sys/class/net", name, "ifindex").read_text()
    except OSError:
        return None


def _pause_under(holder: int) -> int:
    """Return a process's child once it is the final program (namespaces and mounts are ready), or 0."""
    try:
        children = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "pause":
                return int(child)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0


def _start_time(pid: int) -> str | None:
    """Return when a process started, in ticks since boot; nothing for one that has ended, reaped or not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in {"Z", "X"} else fields[19]


def _raise_inotify_limit() -> None:
    """Let kubelet and containerd watch as many files as they do; the limit is the host's, and stays raised."""
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    if int(limit.read_text()) < 1024:
        limit.write_text("1024")


def _run(command: Sequence[str], *, check: bool = True, timeout_s: float = 120.0) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and result.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed: {(result.stderr or result.stdout).strip()}")
    return result.stdout
