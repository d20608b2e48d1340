"""`millrace plan --json` as a restricted Job runs it, with only a manifest; and what it refuses."""

from __future__ import annotations

import os
import sys

import pytest
import yaml
from tests import forked
from typer.testing import CliRunner

from millrace.cli.app import app
from millrace.plan.topology_plan import TopologyPlan

PROGRAM = '''\
import os
import sys

print("imported")


def topology(builder):
    """Print in every possible way, then count."""
    print("built")
    sys.stdout.write("written\\n")
    os.write(1, b"of the system\\n")
    os.system("echo of a child")
    builder.stream("lines").group_by_key().count().to_stream().to("counts")
'''

READ_ONLY = '''\
"""Stands in for a read-only root file system: whoever opens a file to write, or makes a folder, is refused."""
import errno
import os
import sys


def refuse(event, args):
    if event == "open":
        path, _, flags = args
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and not str(path).startswith("/dev/") and not isinstance(path, int):
            raise OSError(errno.EROFS, "Read-only file system", path)
    elif event in ("os.mkdir", "os.rename", "os.symlink", "os.link"):
        raise OSError(errno.EROFS, "Read-only file system", args[0])


sys.addaudithook(refuse)
'''

SECURED = {
    "tls": {"caSecretRef": {"name": "ca"}},
    "auth": {"type": "scram-sha-512", "secretRef": {"name": "login"}},
}


class Job:
    """A folder with a manifest and its program, in which to run the command."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "shop.py").write_text(PROGRAM)

    def manifest(self, *, kafka=None, **spec):
        """Write the manifest."""
        document = {
            "apiVersion": "streams.millrace.dev/v1alpha1",
            "kind": "StreamsApp",
            "metadata": {"name": "shop"},
            "spec": {
                "applicationId": "shop-v1",
                "image": "registry.example/shop:1",
                "app": {"entrypoint": "shop:topology"},
                "kafka": {"bootstrapServers": ["kafka.invalid:9092"], **(kafka or {})},
                **spec,
            },
        }
        (self.folder / "streamsapp.yaml").write_text(yaml.safe_dump(document))

    def command(self):
        """Return the command line."""
        return [sys.executable, "-m", "millrace.cli", "plan", "-f", str(self.folder / "streamsapp.yaml"), "--json"]

    def run(self):
        """Run it; standard output is not a terminal."""
        return forked.run(self.command(), capture_output=True, text=True, cwd="/", timeout=120)

    def run_restricted(self):
        """Run it with a minimal environment as a user without write access."""
        hooks = self.folder / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(READ_ONLY)
        search = os.pathsep.join([str(hooks), *filter(None, [os.environ.get("PYTHONPATH")])])
        return forked.run(
            self.command(),
            cold="it is refused to write from the start",
            capture_output=True,
            text=True,
            cwd="/",
            timeout=120,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": search},
        )

    def plan(self):
        """Run it in this process, which is faster, for errors found before the program is imported."""
        return CliRunner().invoke(app, ["plan", "-f", str(self.folder / "streamsapp.yaml"), "--json"])


@pytest.fixture
def job(tmp_path):
    """Return a Job of an application."""
    return Job(tmp_path)


def test_plan_needs_no_kafka_secret_home_or_disk(job):
    """With brokers that do not exist, secrets that are not mounted and nowhere to write, only the plan is printed."""
    job.manifest(kafka=SECURED)
    ran = job.run_restricted()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("\n") == 1
    assert ran.stdout.startswith('{"version"'), "by which the plan is found in a log"
    plan = TopologyPlan.from_json(ran.stdout)
    assert plan.application_id == "shop-v1"
    assert plan.subtopologies[0].source_topics == ("lines",)


def test_what_the_program_prints_goes_to_standard_error(job):
    """However the program prints, standard output contains only the plan."""
    job.manifest()
    ran = job.run()
    assert TopologyPlan.from_json(ran.stdout).application_id == "shop-v1"
    for line in ("imported", "built", "written", "of the system", "of a child"):
        assert line in ran.stderr


@pytest.mark.parametrize(
    ("spec", "reason", "says", "field"),
    [
        (
            {"kafka": {"config": {"producer.compression.type": "zip"}}},
            "Config",
            "compression.type",
            "spec.kafka.config[producer.compression.type]",
        ),
        (
            {
                "processing": {"guarantee": "exactly_once_v2", "commitInterval": "5s"},
                "kafka": {"config": {"producer.transaction.timeout.ms": 3000}},
            },
            "Config",
            "commit.interval.ms=5000 is longer than producer.transaction.timeout.ms",
            "spec.processing.commitInterval",
        ),
        (
            {"kafka": {"config": {"num.stream.thread": "x", "poll.ms": "x"}}},
            "Config",
            "poll.ms",
            "spec.kafka.config[poll.ms]",
        ),
    ],
)
def test_settings_that_cannot_run_are_refused_with_their_field(job, spec, reason, says, field):
    """The plan reports what no pod could run: exit code 2, no standard output, and a machine-readable reason."""
    job.manifest(**spec)
    ran = job.plan()
    assert ran.exit_code == 2, ran.stderr
    assert ran.stdout == ""
    *_, error, hint, last = ran.stderr.splitlines()
    assert error.startswith("Error: ")
    assert says in error
    assert hint == f"Hint: In {job.folder}/streamsapp.yaml this is {field}."
    assert last == f"Reason: {reason}"


@pytest.mark.parametrize(
    ("program", "reason", "says"),
    [
        ("def topology(builder):\n    return {}['missing']\n", "Entrypoint", "KeyError"),
        ("import nowhere\n", "Entrypoint", "module `nowhere` is not installed"),
        ("def topology(builder):\n    builder.stream('a').to(\n", "Entrypoint", "shop.py:2"),
    ],
)
def test_error_of_the_program_ends_with_its_reason(job, program, reason, says):
    """Standard error says what went wrong, where, and what kind of error it is."""
    (job.folder / "shop.py").write_text(program)
    job.manifest()
    ran = job.run()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.splitlines()[-1] == f"Reason: {reason}"


def test_wrong_manifest_ends_with_its_reason(job):
    """A manifest that breaks a rule is reported in the same way."""
    job.manifest(threads=0)
    ran = job.plan()
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1] == "Reason: Manifest"


def test_run_refuses_the_same_settings(job):
    """An instance with such settings ends at once with the same message."""
    job.manifest(kafka={"config": {"producer.compression.type": "zip"}})
    command = [
        sys.executable,
        "-m",
        "millrace.cli",
        "run",
        "-f",
        "streamsapp.yaml",
        "--replica",
        "0",
        "--state-dir",
        "state",
    ]
    ran = forked.run(command, capture_output=True, text=True, cwd=job.folder, timeout=120)
    assert ran.returncode == 2, ran.stderr
    assert "spec.kafka.config[producer.compression.type]" in ran.stderr
    assert not (job.folder / "state").exists()
