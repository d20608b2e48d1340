"""Environments of their own for programs that must not share Millrace's packages: Quix Streams, Faust and py-spy."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.report import announce

from millrace.dev.jars import cache_directory


@functools.cache
def environment(name: str, hint: str = "") -> Path:
    """Return the folder of an environment's programs; it is created on first use.

    Args:
        name: of the environment; `<name>-requirements.txt` in this folder has its packages.
        hint: what to do if they cannot be installed.
    """
    requirements = Path(__file__).parent / f"{name}-requirements.txt"
    version = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    directory = cache_directory() / f"{name}-{version}"
    programs, ready = directory / "bin", directory / ".ready"
    if not ready.exists():
        announce(f"Installing {requirements.name} into {directory} …")
        shutil.rmtree(directory, ignore_errors=True)
        pip = (str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        try:
            subprocess.run((sys.executable, "-m", "venv", str(directory)), check=True, env=own_variables())
            subprocess.run((*pip, "--require-hashes", "-r", str(requirements)), check=True, env=own_variables())
        except subprocess.CalledProcessError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise SystemExit(f"{requirements.name} could not be installed; pip's message is above. {hint}") from error
        ready.touch()
    return programs


def own_variables() -> dict[str, str]:
    """Return the variables for an environment's programs: without PYTHONPATH, whose packages would pass for its own."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
