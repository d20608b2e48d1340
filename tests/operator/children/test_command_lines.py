"""The command lines of pods and plan Jobs are understood by Millrace."""

import dataclasses
import sys
from pathlib import Path

from tests import forked
from tests.operator.children.apps import SMALL, program, revision_of
from typer.main import get_command

from millrace.cli.app import app
from millrace.cli.application import application, setting
from millrace.kafka.client_settings import ClientSettings
from millrace.manifest import to_streams_config
from millrace.manifest.loader import load
from millrace.manifest.settings import SECRETS_DIR
from millrace.plan.topology_plan import TopologyPlan
from millrace_operator.children import naming
from millrace_operator.children.config_maps import MANIFEST_KEY, revision_config_map
from millrace_operator.children.plan_job import plan_job
from millrace_operator.children.pod import pod_template
from millrace_operator.reconcile import consumer_group

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


OLDER = [
    "millrace",
    "run",
    *("-f", "streamsapp.yaml"),
    *("--replica", "2"),
    *("--state-dir", "state"),
    *("--http", "0.0.0.0:8080"),
    "--drain-endpoint",
    *("--secrets-dir", "secrets"),
    *("-c", "__internal.topics.create__=false"),
]
"""The command that an operator gives to pods which it still drains over HTTP."""
OPTIONS_OF_OLDER = {"-f", "--replica", "--state-dir", "--http", "--secrets-dir", "-c"}
"""The options that a runtime of that age understands."""


def command_line(pod, folder: Path):
    """Return a container's command with its manifest in another folder, and write the manifest there."""
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
    command = [sys.executable, "-m", "millrace.cli", *arguments]
    return forked.run(command, capture_output=True, text=True, cwd=folder, timeout=60)


def test_plan_job_prints_the_plan(tmp_path):
    """Given the revision's ConfigMap, the Job's command prints a plan that the operator can read, and nothing else."""
    result = run(command_line(plan_job(revision_of(SPEC))["spec"]["template"], tmp_path), tmp_path)
    assert result.returncode == 0, result.stderr
    plan = TopologyPlan.from_json(result.stdout)
    assert plan.application_id == SPEC["applicationId"]
    assert [source for part in plan.subtopologies for source in part.source_topics] == ["in"]


def test_program_that_is_wrong_is_not_tried_again(tmp_path):
    """A broken program exits with a code that fails the Job at once, and the error says what is wrong."""
    job = plan_job(revision_of(SPEC))["spec"]
    line = command_line(job["template"], tmp_path)
    (tmp_path / "words.py").write_text("import nothing_there\n")
    result = run(line, tmp_path)
    (rule,) = (rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob")
    assert rule["onExitCodes"]["containerName"] == program(job["template"]["spec"])["name"]
    assert result.returncode in rule["onExitCodes"]["values"]
    assert "nothing_there" in result.stderr


def test_pods_command_is_understood(tmp_path):
    """Every option of the pod's command is one of `millrace run`, and the pod's index yields the member with the pod's name."""
    line = command_line(pod_template(revision_of(SPEC)), tmp_path)
    _, name, *arguments = [argument.replace("$(POD_INDEX)", "2") for argument in line]
    command = get_command(app).commands[name]
    given = command.make_context(name, arguments).params
    assert given["replica"] == 2
    assert given["drain_file"] is None
    assert given["secrets_dir"] == SECRETS_DIR
    assert [setting(text) for text in given["config"]] == [("__internal.topics.create__", "false")]
    settings = to_streams_config(load(given["file"]), given["replica"])
    assert settings["group.instance.id"] == naming.pod("orders", 2)


def test_members_are_named_as_the_operator_knows_them(tmp_path):
    """Clients get the client and instance ids from the command, which override those of a replica on its own."""
    of = dataclasses.replace(revision_of(SPEC), uid="1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    line = command_line(pod_template(of), tmp_path)
    values = {"$(POD_INDEX)": "2", "$(POD_NAME)": "orders-2"}
    for name, value in values.items():
        line = [argument.replace(name, value) for argument in line]
    _, name, *arguments = line
    given = get_command(app).commands[name].make_context(name, arguments).params
    made = application(None, given["file"], settings=given["config"], replica=2, secrets_dir=tmp_path)
    member = ClientSettings(made.config, "process", resolve_references=False).membership(3)
    assert member.instance_id == "orders-2.1b4e28ba-3"
    assert consumer_group.is_member_of("orders", [of.uid], member.client_id, None)
    assert consumer_group.is_member_of("orders", [of.uid], "", member.instance_id)


def test_command_of_an_older_operator_is_understood(tmp_path):
    """A removed option is logged and ignored: the program ends only because there is no manifest."""
    result = run(OLDER, tmp_path)
    assert "No such option" not in result.stderr
    assert "--drain-endpoint" in result.stderr
    assert "streamsapp.yaml" in result.stderr.splitlines()[-1]
    help_text = run(["millrace", "run", "--help"], tmp_path).stdout
    assert "--drain-file" in help_text
    assert "--drain-endpoint" not in help_text


def test_older_runtime_understands_the_command():
    """No option is new: newer instances get everything else by variables or settings, which older ones ignore."""
    of = dataclasses.replace(revision_of(SPEC), uid="1b4e28ba-2fa1-11d2-883f-0016d3cca427")
    arguments = program(pod_template(of)["spec"])["args"]
    assert {argument for argument in arguments if argument.startswith("-")} <= OPTIONS_OF_OLDER
