"""What a killed run leaves behind: the kernel has ended its processes, but files and empty cgroups remain."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.machine import Machine, numbers_in_use

PREFIX = f"millrace-e2e-{os.getpid()}-"
_PATTERN = "millrace-e2e-*"


def remove_leftovers() -> None:
    """Remove the directories and cgroups of dead runs; those of live runs stay."""
    for directory in Path(tempfile.gettempdir()).glob(_PATTERN):
        owner = directory.name.split("-")[2]
        if not Path("/proc", owner).exists() and Machine.load(directory / "machine.json") is None:
            shutil.rmtree(directory, ignore_errors=True)
    for name in cgroups.names("millrace") - numbers_in_use():
        cgroups.remove(name)
