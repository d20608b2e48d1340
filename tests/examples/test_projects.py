"""The examples are projects: their tests pass where they are, and their manifests fit their programs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tests import forked
from tests.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path.parent for path in EXAMPLES.glob("*/streamsapp.yaml"))
TESTS = sorted(EXAMPLES.glob("*/test_*.py"))


def python(folder, *arguments, cold=""):
    """Run Python in an example's folder, and return what it prints."""
    command = [sys.executable, "-m", *map(str, arguments)]
    done = forked.run(command, cold=cold, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.parent.name)
def test_its_tests_pass(test):
    """`python -m pytest` in the example's folder passes, as its README says."""
    printed = python(test.parent, "pytest", "-p", "no:cacheprovider", cold="pytest rewrites what it imports")
    wanted = len(re.findall(r"^def test_", test.read_text(), re.MULTILINE))
    assert int(re.search(r"(\d+) passed", printed)[1]) >= wanted > 0


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_its_manifest_fits_its_program(folder):
    """`millrace plan` accepts the manifest, finds the program beside it, and can build its topology."""
    plan = json.loads(python(EXAMPLES, "millrace.cli", "plan", "-f", folder / "streamsapp.yaml", "--json"))
    assert plan["applicationId"] in (folder / "streamsapp.yaml").read_text()
    assert plan["subtopologies"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_its_readme_shows_every_file(folder):
    """The README links to each of the project's files, except those that packaging or pytest needs."""
    names = {path.name for path in folder.iterdir() if path.is_file()} - {"README.md", "Dockerfile", "conftest.py"}
    assert names == set(re.findall(r"\]\(([^)/#]+)\)", (folder / "README.md").read_text()))
