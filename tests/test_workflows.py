"""The workflows of GitHub call what exists, may do little, and cover the versions of Python that the project names.

Actionlint checks the rest, in a job of `checks.yml`.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
JOBS = [pytest.param(job, id=f"{name}:{key}") for name, flow in WORKFLOWS.items() for key, job in flow["jobs"].items()]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def lines(job):
    """Return the lines that a job runs, also through the workflow that it uses."""
    scripts = [step["run"] for step in job.get("steps", ()) if "run" in step]
    scripts += [job["with"]["command"]] if "with" in job else []
    return [line for script in scripts for line in script.splitlines()]


@pytest.mark.parametrize("job", JOBS)
def test_what_a_job_runs_exists(job):
    """A job runs targets of the Makefile and scripts of the checkout that exist."""
    for program, *arguments in map(shlex.split, lines(job)):
        if program == "make":
            assert {argument for argument in arguments if "=" not in argument} <= TARGETS
        if "/" in program:
            assert (ROOT / program).exists()


@pytest.mark.parametrize("job", JOBS)
def test_actions_are_pinned(job):
    """Actions have a version, and workflows of the checkout exist."""
    for used in [step["uses"] for step in job.get("steps", ()) if "uses" in step] + [
        job[key] for key in job if key == "uses"
    ]:
        if used.startswith("./"):
            assert (ROOT / used).exists()
        else:
            assert re.search(r"@(release/)?v\d+$", used)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_may_only_read(name):
    """A workflow may read the repository; only jobs of a release may do more, which run for tags alone."""
    flow = WORKFLOWS[name]
    assert flow["permissions"] == {"contents": "read"}
    if any("permissions" in job for job in flow["jobs"].values()):
        assert flow[True] == {"push": {"tags": ["v*"]}}  # `on`, which YAML 1.1 takes for a boolean


def test_every_change_is_checked():
    """A push to main and a pull request run what `.ci/run` does, and a later push does not cancel the checks of another."""
    flow = WORKFLOWS["checks.yml"]
    assert flow[True] == {"push": {"branches": ["main"]}, "pull_request": None}
    assert lines(flow["jobs"]["checks"]) == [".ci/run"]
    assert flow["concurrency"]["group"].endswith("${{ github.event.pull_request.number || github.sha }}")


def test_nothing_is_published_before_everything_passed():
    """The jobs of a release that may write wait for `make all`."""
    jobs = WORKFLOWS["release.yml"]["jobs"]
    assert lines(jobs["everything"]) == ["make all"]

    def waits_for(key):
        return {key}.union(*map(waits_for, jobs[key].get("needs", ())))

    for key, job in jobs.items():
        if "permissions" in job:
            assert {"everything", "packages"} <= waits_for(key)


def test_each_version_of_python_is_tested():
    """The unit tests run on each version that the distribution names, which are those that it can be installed on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if " :: 3." in each]
    assert WORKFLOWS["nightly.yml"]["jobs"]["python"]["strategy"]["matrix"]["python"] == named
    below = f"3.{int(named[-1].removeprefix('3.')) + 1}"
    assert project["requires-python"] == f">={named[0]},<{below}"
