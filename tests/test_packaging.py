"""The distribution: what `make wheel` builds, and that what the documentation tells people to install is in it."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import millrace
from millrace.kafka.security import OAUTH_METHODS

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "Dockerfile"),
    *(path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*.md")),
    *(path for folder in ("runtime", "operator") for path in (ROOT / folder).rglob("*.py")),
    *(path for path in (ROOT / "charts").rglob("*") if path.is_file()),
]
COMMAND = re.compile(r"pip install '([^']+)'")


def commands():
    """Return every `pip install '…'` that the project tells people, with the extras of OAuth methods filled in."""
    found = {match for path in PAGES for match in COMMAND.findall(path.read_text())}
    methods = [method.extra for method in OAUTH_METHODS.values() if method.extra]
    return sorted({told.replace("{method.extra}", extra) for told in found for extra in methods})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel, as `make wheel` and the Dockerfile do."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, ROOT], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel):
    """Return the wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_name_and_version(wheel, metadata):
    """The distribution has its own name and the version of the code; the import names are `millrace` and `millrace_operator`."""
    assert metadata["Name"] == "millrace-streams"
    assert metadata["Version"] == millrace.__version__
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"millrace", "millrace_operator"}
    assert {"millrace/py.typed", "millrace/__init__.pyi", "millrace_operator/py.typed"} <= names


def test_commands_and_plugins_are_registered(wheel):
    """Installing the wheel gives the command `millrace`, its sub-command `explain`, and pytest's fixtures."""
    parsed = ConfigParser(delimiters="=")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        parsed.read_string(archive.read(name).decode())
    assert parsed["console_scripts"]["millrace"] == "millrace.cli:main"
    assert "explain" in parsed["millrace.commands"]
    assert "millrace" in parsed["pytest11"]


def test_dependencies_are_not_pinned(metadata):
    """A library leaves others room: requirements have lower bounds, and only the lock files have exact versions."""
    needed = metadata.get_all("Requires-Dist")
    assert any(each.startswith("confluent-kafka>=") for each in needed)
    assert not [each for each in needed if "==" in each.partition(";")[0]]


def test_what_people_are_told_to_install_exists(wheel, metadata):
    """Every `pip install '…'` in documentation and messages names this distribution and extras that it has."""
    command = ["pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--no-index"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--find-links", wheel.parent, *commands()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"Would install millrace-streams-{millrace.__version__}\n" in done.stdout
    extras = {extra for told in commands() for extra in Requirement(told).extras}
    assert extras <= set(metadata.get_all("Provides-Extra")), "of which pip does not complain without dependencies"


def test_nobody_is_told_to_install_another_project():
    """Extras are only ever named with the distribution's name and the whole command."""
    assert {"millrace-streams[operator]", "millrace-streams[aws]"} <= set(commands())
    for path in PAGES:
        for line in path.read_text().splitlines():
            told = re.findall(r"(?<![\w.])millrace(?:-streams)?\[[^\]]*\]", line)
            assert told == COMMAND.findall(line), f"{path}: {line}"
