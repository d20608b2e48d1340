"""What pods and plan Jobs run is a command line that Millrace understands."""

import subprocess
import sys
from pathlib import Path

from tests.operator.children.apps import SMALL, program, revision_of
from typer.main import get_command

from millrace.cli.app import app
from millrace.cli.application import setting
from millrace.manifest import to_streams_config
from millrace.manifest.loader import load
from millrace.manifest.settings import SECRETS_DIR
from millrace.topology.plan import TopologyPlan
from millrace_operator.children import MANIFEST_KEY, names, plan_job, pod_template, revision_config_map

PROGRAM = '''\
from millrace.topology import Topology


def topology(config):
    """Pass records on."""
    result = Topology()
    result.add_source("source", config["input"])
    result.add_sink("sink", "out", "source")
    return result
'''
SPEC = SMALL | {"app": {"entrypoint": "words:topology", "config": {"input": "in"}}}


def command_line(pod, folder: Path):
    """Return a container's command with its manifest in another folder, and put the manifest there."""
    container = program(pod["spec"])
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "app")
    text = revision_config_map(revision_of(SPEC), SPEC)["data"][MANIFEST_KEY]
    (folder / MANIFEST_KEY).write_text(text)
    (folder / "words.py").write_text(PROGRAM)
    arguments = [argument.replace(mount["mountPath"], str(folder)) for argument in container["args"]]
    return [*container["command"], *arguments]


def run(line, folder: Path):
    """Run a container's command as a process."""
    program_, *arguments = line
    assert program_ == "millrace"
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=60,
        check=False,
    )


def test_plan_job_prints_the_plan(tmp_path):
    """The Job's command, given the revision's ConfigMap, prints a plan that the operator can read, and nothing else."""
    result = run(command_line(plan_job(revision_of(SPEC))["spec"]["template"], tmp_path), tmp_path)
    assert result.returncode == 0, result.stderr
    plan = TopologyPlan.from_json(result.stdout)
    assert plan.application_id == SPEC["applicationId"]
    assert [source for part in plan.subtopologies for source in part.source_topics] == ["in"]


def test_program_that_is_wrong_is_not_tried_again(tmp_path):
    """The code with which a wrong program ends is one that fails the Job at once, and the error tells what is wrong."""
    job = plan_job(revision_of(SPEC))["spec"]
    line = command_line(job["template"], tmp_path)
    (tmp_path / "words.py").write_text("import nothing_there\n")
    result = run(line, tmp_path)
    (rule,) = (rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob")
    assert rule["onExitCodes"]["containerName"] == program(job["template"]["spec"])["name"]
    assert result.returncode in rule["onExitCodes"]["values"]
    assert "nothing_there" in result.stderr


def test_pods_command_is_understood(tmp_path):
    """Every option of the pod's command is one of `millrace run`, and the pod's index makes the member of the pod's name."""
    line = command_line(pod_template(revision_of(SPEC)), tmp_path)
    _, name, *arguments = [argument.replace("$(POD_INDEX)", "2") for argument in line]
    command = get_command(app).commands[name]
    given = command.make_context(name, arguments).params
    assert given["replica"] == 2
    assert given["drain_endpoint"] is True
    assert given["secrets_dir"] == SECRETS_DIR
    assert [setting(text) for text in given["config"]] == [("__internal.topics.create__", "false")]
    settings = to_streams_config(load(given["file"]), given["replica"])
    assert settings["group.instance.id"] == names.pod("orders", 2)
