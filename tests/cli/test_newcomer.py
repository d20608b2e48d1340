"""A newcomer's way: what is installed into an empty environment by the line of the documentation does all that the pages tell."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
NEWEST_MINOR = 14

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(1200)]


def pythons():
    """Return this Python and the newest other one that Millrace supports and that is installed here, by version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {sys.version_info.minor: sys.executable}
    for minor in range(sys.version_info.minor + 1, NEWEST_MINOR + 1):
        on_path = shutil.which(f"python3.{minor}")
        built = sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}"))
        if on_path and "shims" not in Path(on_path).parts:
            found[minor] = on_path
        elif built:
            found[minor] = str(built[-1])
    return {f"3.{minor}": found[minor] for minor in sorted({min(found), max(found)})}


def told():
    """Return the line with which the page for newcomers installs Millrace and pytest."""
    lines = set(re.findall(r"^pip install .*pytest$", (ROOT / "docs" / "development.md").read_text(), re.MULTILINE))
    (line,) = lines
    return shlex.split(line)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build the wheel, as `make wheel` does, and return its folder."""
    folder = tmp_path_factory.mktemp("dist")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, ROOT], check=True)
    return folder


class Newcomer:
    """Somebody with an empty environment and an empty folder, who sees nothing of this checkout."""

    def __init__(self, python, folder, wheels):
        self.folder = folder
        hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYENV_VERSION"}
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden} | {
            "PATH": os.pathsep.join((str(folder / ".venv" / "bin"), os.environ["PATH"])),
            "PIP_FIND_LINKS": str(wheels),
            "XDG_DATA_HOME": str(folder / "data"),
        }
        subprocess.run([python, "-m", "venv", folder / ".venv"], check=True, env=self.environment)

    def run(self, *command, code=0):
        """Run a command, which must end with a code, and return its output, or its errors if it must fail."""
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            timeout=590,
            check=False,
        )
        assert ran.returncode == code, ran.stderr + ran.stdout
        assert "Traceback" not in ran.stderr
        return ran.stderr if code else ran.stdout

    def dev(self, *arguments, code=0):
        """Run a command of `millrace dev`."""
        return self.run("millrace", "dev", *arguments, code=code)

    def replicas(self):
        """Return the process of each replica."""
        return [replica["pid"] for replica in json.loads(self.dev("status", "--json"))["replicas"]]

    def counts(self):
        """Return all counts of each word in the output."""
        counts = {}
        for record in map(json.loads, self.dev("consume", "word-counts").splitlines()):
            counts.setdefault(record["key"], []).append(record["value"])
        return counts

    def wait_for(self, **counts):
        """Wait until each word has been counted so far; no count may have been written twice, or be less than one before."""

        def reached():
            found = self.counts()
            assert all(values == sorted(set(values)) for values in found.values()), found
            return {word: values[-1] for word, values in found.items()} == counts

        wait_until(reached, lambda: f"{self.counts()} reaches {counts}", poll_s=0.5)


@pytest.fixture(
    params=[
        pytest.param(python, id=version, marks=[] if python == sys.executable else pytest.mark.thorough)
        for version, python in pythons().items()
    ]
)
def newcomer(request, tmp_path, wheels):
    """Yield somebody without Millrace; what they have started is stopped at the end."""
    newcomer = Newcomer(request.param, tmp_path, wheels)
    yield newcomer
    if (newcomer.folder / "streamsapp.yaml").exists():
        newcomer.dev("down")


@pytest.mark.thorough
def test_from_an_empty_environment_to_a_changed_topology(newcomer):
    """Install, create, test, run, send, look, survive a killed replica, change the topology, reset: as the pages tell."""
    newcomer.run(*told())
    shown = newcomer.run("python", "-c", "import millrace, sys; print(millrace.__file__, sys.version)")
    assert shown.startswith(str(newcomer.folder / ".venv"))

    newcomer.run("millrace", "init", "words")
    newcomer.folder /= "words"
    assert "1 passed" in newcomer.run("pytest", "-q")

    newcomer.dev("up", "--detach")
    newcomer.dev("produce", "lines", '{"value": "to be or not to be"}', '{"value": "to do"}')
    newcomer.wait_for(to=3, be=2, do=1, **{"or": 1, "not": 1})

    before = newcomer.replicas()
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    newcomer.dev("produce", "lines", *['{"value": "be be"}'] * 10)
    wait_until(lambda: None not in newcomer.replicas() and before[0] not in newcomer.replicas(), "another process")
    newcomer.wait_for(to=3, be=22, do=1, **{"or": 1, "not": 1})

    newcomer.dev("down")
    program = newcomer.folder / "words.py"
    program.write_text(program.read_text().replace("line.lower()", "line.upper()").replace('"counts"', '"totals"'))
    refused = newcomer.dev("up", "--detach", code=1)
    assert "does not fit the changed program: store counts was renamed to totals" in refused
    assert newcomer.dev("reset", "--yes").endswith("words-v1 is reset\n")
    newcomer.dev("up", "--detach")
    newcomer.wait_for(to=3, be=22, do=1, TO=3, BE=22, DO=1, NOT=1, OR=1, **{"or": 1, "not": 1})
