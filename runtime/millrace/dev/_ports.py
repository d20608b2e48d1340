"""Free TCP ports for servers that cannot be asked which port they took.

They are below the range that the kernel uses for outgoing connections, so that no client's connection can take a broker's port
while the broker restarts. (A client that keeps trying a closed port in that range may even connect to itself.)
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

from millrace.errors import BrokerStartError

_LOWEST = 15_000
_DEFAULT_EPHEMERAL_START = 32_768
_ATTEMPTS = 200


def free_ports(count: int, host: str) -> list[int]:
    """Return `count` distinct ports on which nothing listens; they are not reserved.

    Args:
        count: How many ports.
        host: The local address the servers will listen on.

    Raises:
        BrokerStartError: There are not enough.
    """
    found: set[int] = set()
    start = _DEFAULT_EPHEMERAL_START
    with contextlib.suppress(OSError):
        start = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    highest = (start if start > _LOWEST + 1_000 else _DEFAULT_EPHEMERAL_START) - 1
    chooser = random.SystemRandom()
    for _ in range(_ATTEMPTS + count):
        port = chooser.randint(_LOWEST, highest)
        if port not in found and is_free(port, host):
            found.add(port)
        if len(found) == count:
            return list(found)
    message = (
        f"Fewer than {count} free TCP ports on {host} between {_LOWEST} and {highest}: stop programs that listen there"
    )
    raise BrokerStartError(message)


def is_free(port: int, host: str) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
