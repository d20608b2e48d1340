"""The node's cgroup in every hierarchy of the host: all pods are below it, so two clusters never share one."""

from __future__ import annotations

import os
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_REMOVAL_TIMEOUT_S = 20.0


def create(name: str) -> None:
    """Create the group in every hierarchy."""
    for hierarchy in _hierarchies():
        (hierarchy / name).mkdir(exist_ok=True)


def remove(name: str) -> None:
    """Remove the group and everything below it; the kernel may need a moment to notice that its processes have ended."""
    deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
    for hierarchy in _hierarchies():
        while not _remove_tree(hierarchy / name) and time.monotonic() < deadline:
            time.sleep(0.1)


def names(prefix: str) -> frozenset[str]:
    """Return the groups at the root of any hierarchy whose names start like this."""
    return frozenset(path.name for hierarchy in _hierarchies() for path in hierarchy.glob(f"{prefix}*"))


def _hierarchies() -> list[Path]:
    """Return the mount points: one in version 2, one for each controller in version 1."""
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [path for path in _ROOT.iterdir() if path.is_dir() and not path.is_symlink()]


def _remove_tree(group: Path) -> bool:
    if not group.exists():
        return True
    for directory, _, _ in os.walk(group, topdown=False):
        try:
            Path(directory).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True
