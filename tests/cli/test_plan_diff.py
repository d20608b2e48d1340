"""`millrace plan --diff`: its output and exit codes."""

from __future__ import annotations

import json
import sys

import pytest
from tests import forked

PROGRAM = """\
def topology(builder, config):
    counted = builder.stream("in").group_by_key().count(config.get("store", "counts"))
    counted.to_stream().to(config.get("out", "out"))
"""
MANIFEST = """\
apiVersion: streams.millrace.dev/v1alpha1
kind: StreamsApp
metadata: {{name: shop}}
spec:
  applicationId: shop-v1
  image: shop:1
  app: {{entrypoint: "shop:topology", config: {{{config}}}}}
  kafka: {{bootstrapServers: ["kafka:9092"]}}
"""


def millrace(folder, *arguments):
    """Run a command as a user would, in a process."""
    command = [sys.executable, "-m", "millrace.cli", *arguments]
    return forked.run(command, capture_output=True, text=True, cwd=folder, timeout=60)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a program, its manifest, its plan, and the manifests of later versions."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    for name, config in (("now", ""), ("output", "out: elsewhere"), ("renamed", "store: totals")):
        (tmp_path / f"{name}.yaml").write_text(MANIFEST.format(config=config))
    result = millrace(tmp_path, "plan", "-f", "now.yaml", "--json")
    assert result.returncode == 0, result.stderr
    (tmp_path / "old.json").write_text(result.stdout)
    return tmp_path


def test_unchanged_topology(folder):
    """The same topology is compatible, with code 0."""
    result = millrace(folder, "plan", "-f", "now.yaml", "--diff", "old.json")
    assert (result.returncode, result.stdout) == (0, "Compatible: nothing has changed\n")


def test_compatible_change(folder):
    """A change that keeps the state is explained, with code 0."""
    result = millrace(folder, "plan", "-f", "output.yaml", "--diff", "old.json")
    assert result.returncode == 0, result.stderr
    first, *_, last = result.stdout.splitlines()
    assert first == "✓ sink topic out is no longer written by sub-topology 0: no state depends on output topics"
    assert last == "Compatible: the running state fits"


def test_change_that_needs_a_reset(folder):
    """A change that loses state is shown with the resource, the reason and what to do, with code 3."""
    result = millrace(folder, "plan", "-f", "renamed.yaml", "--diff", "old.json")
    assert result.returncode == 3
    assert result.stdout.startswith("✗ store counts was renamed to totals: its state stays in the old changelog")
    assert "NeedsReset: stop the application and run `millrace reset`" in result.stdout


def test_json_has_the_same_code(folder):
    """`--json` prints the difference as one document."""
    result = millrace(folder, "plan", "-f", "renamed.yaml", "--diff", "old.json", "--json")
    assert result.returncode == 3
    content = json.loads(result.stdout)
    assert content["verdict"] == "NeedsReset"
    assert [item["name"] for item in content["reasons"]] == ["counts"]


GENERATED = """\
from millrace import JoinWindows

def topology(builder):
    builder.stream("in").group_by(lambda _, value: value).count().to_stream().to("out")
    one, other = builder.stream("left"), builder.stream("right")
    one.join(other, max, JoinWindows.of_time_difference_with_no_grace("5m")).to("pairs")
"""


def test_names_that_are_generated(tmp_path):
    """`plan` shows where a name is generated and what gives one, and `plan --diff` too, also as JSON."""
    (tmp_path / "app.py").write_text(GENERATED)
    shown = millrace(tmp_path, "plan", "app.py", "--application-id", "app")
    assert shown.returncode == 0, shown.stderr
    store = "KSTREAM-AGGREGATE-STATE-STORE-0000000002"
    assert (
        f'store {store} (KGroupedStream.count at app.py:4): Materialized.as_("{store}") keeps its name' in shown.stdout
    )
    assert f'topic {store}-repartition (KGroupedStream.count at app.py:4): Grouped.as_("{store}") keeps' in shown.stdout
    joining = 'store KSTREAM-JOINTHIS-0000000013-store (KStream.join at app.py:6): StreamJoined.as_("…") gives it another name'
    assert joining in shown.stdout
    plan = millrace(tmp_path, "plan", "app.py", "--application-id", "app", "--json")
    (tmp_path / "old.json").write_text(plan.stdout)
    arguments = ("plan", "app.py", "--application-id", "app", "--diff", "old.json")
    assert joining in millrace(tmp_path, *arguments).stdout
    content = json.loads(millrace(tmp_path, *arguments, "--json").stdout)
    assert content["verdict"] == "Compatible"
    assert content["generatedNames"][0] == {
        "resource": "store",
        "name": store,
        "call": "KGroupedStream.count",
        "at": "app.py:4",
        "option": f'Materialized.as_("{store}")',
        "keepsName": True,
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "Error: Cannot read the old plan old.json: No such file or directory"),
        ("not json", "Error: old.json is not a topology plan: the document: Invalid JSON"),
        ('{"apiVersion": "v1"}', "Error: old.json is not a topology plan: applicationId: Field required"),
        ('{"version": 2, "applicationId": "a", "hash": "0"}', "Error: old.json is a plan of version 2"),
    ],
)
def test_foreign_files_are_refused(folder, content, expected):
    """A file that cannot be read or is not a plan is reported on one line, with code 2."""
    (folder / "old.json").unlink()
    if content is not None:
        (folder / "old.json").write_text(content)
    result = millrace(folder, "plan", "-f", "now.yaml", "--diff", "old.json")
    assert result.returncode == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
