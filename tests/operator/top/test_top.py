"""`millrace top`: what it asks of an API server (here, canned answers) and of a local host, and what it draws."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from tests.operator.explain.test_loading import GROUP, Api, api  # noqa: F401 (a fixture)
from typer.testing import CliRunner

from millrace.cli.app import app
from millrace.dev.local_directory import LocalDirectory, ReplicaView
from millrace.instance_status import (
    DroppedStatus,
    InputLag,
    ProcessingStatus,
    RestoreProgress,
    StreamsStatus,
    TaskCounts,
    TaskStatus,
    ThreadStatus,
    write_status,
)
from millrace_operator.top.snapshot import InstanceSnapshot, Snapshot
from millrace_operator.top.view import TopView

PODS = "/api/v1/namespaces/shop/pods"


def status(
    *tasks: TaskStatus, uid: str = "", behind: int = 0, time_ms: int = 1_000, **changed: object
) -> StreamsStatus:
    """Return the status of a running instance with these tasks."""
    active = [task for task in tasks if task.role == "active"]
    found = StreamsStatus(
        time_ms=time_ms,
        application_id="words",
        pid=7,
        state="RUNNING",
        threads=(ThreadStatus("words-1-StreamThread-1", "RUNNING", records=sum(task.records for task in tasks)),),
        tasks=tasks,
        task_counts=TaskCounts(
            active=len(active),
            standby=len(tasks) - len(active),
            restoring=sum(task.state != "RUNNING" for task in active),
        ),
        lag=InputLag(behind, {"lines-0": behind}),
        processing=ProcessingStatus(records_per_second=50.0, busy_ratio=0.25),
        pod_uid=uid,
    )
    return replace(found, **changed)


def task(name: str, records: int = 0, **changed: object) -> TaskStatus:
    """Return a running task."""
    return replace(TaskStatus(name, "words-1-StreamThread-1", "RUNNING", records, ("counts",)), **changed)


def pod(name: str, phase: str = "Running", **changed: object) -> dict[str, object]:
    """Return a pod of the application."""
    state = {"phase": phase, "containerStatuses": [{"restartCount": 2, "state": {}}]}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "status": state | changed}


def drawn(view: TopView, snapshot: Snapshot) -> str:
    """Return what a view shows, as text."""
    console = Console(file=StringIO(), width=200)
    console.print(view.draw(snapshot))
    return console.file.getvalue()


def row(text: str, start: str) -> list[str]:
    """Return the cells of the table's row that starts with a text."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"│ {start} ")]
    return [cell.strip() for cell in line.strip("│").split("│")]


@pytest.fixture
def pods(api: Api) -> Api:  # noqa: F811
    """An API server with three pods, of which one answers, one is of another application's by now, and one does not start."""
    api.answers[f"{GROUP}/words"] = (200, {})
    waiting = {"containerStatuses": [{"restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    api.answers[PODS] = (200, {"items": [pod("words-10", "Pending", **waiting), pod("words-2"), pod("words-1")]})
    for name, uid in (("words-1", "uid-words-1"), ("words-2", "another")):
        answer = status(task("0_0", 5), uid=uid, behind=1234).to_dict()
        api.answers[f"{PODS}/{name}:8080/proxy/status"] = (200, answer)
        api.answers[f"{PODS}/{name}%3A8080/proxy/status"] = (200, answer)
    return api


def run(*arguments: str):
    """Run `millrace top`."""
    return CliRunner().invoke(app, ["top", "--interval", "0.2", *arguments], env={"COLUMNS": "200"})


def test_pods_are_asked_through_the_api_server(pods):
    """In the order of their numbers; what a pod at a reused address says does not count; a pod that cannot start says why."""
    result = run("words", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["name"] == "shop/words"
    assert [(each["name"], each["state"], each["note"]) for each in found["instances"]] == [
        ("words-1", "RUNNING", ""),
        ("words-2", "Running", "its address belongs to another pod"),
        ("words-10", "ImagePullBackOff", ""),
    ]
    assert found["instances"][0]["status"]["lag"]["total"] == 1234
    assert found["totals"]["lag"] == 1234
    assert (found["totals"]["instances"], found["totals"]["answering"]) == (3, 1)


def test_without_a_terminal_it_is_shown_once(pods):
    """Into a file or pipe one picture is written, and the command ends."""
    result = run("words")
    assert result.exit_code == 0, result.output
    assert "1 of 3 instances answer" in result.output
    assert row(result.output, "words-1")[:6] == ["words-1", "RUNNING", "1", "0", "0", "1,234"]


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        (f"{GROUP}/words", (404, '{"kind":"Status","details":{"kind":"streamsapps"}}'), "There is no StreamsApp words"),
        (PODS, (403, {}), "You are not allowed to read pods in namespace shop"),
        (f"{PODS}/words-1:8080/proxy/status", (403, {}), "`get` on `pods/proxy`"),
    ],
)
def test_refusals_are_explained(pods, path, answer, message):
    """What does not exist or may not be read is named, with the right that is needed."""
    pods.answers[path] = pods.answers[path.replace(":", "%3A")] = answer
    result = run("words")
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())


def test_pod_that_does_not_answer_is_shown(pods):
    """A pod whose server is not up yet, or says something else, has its phase and a note; one that is ready, a hint."""
    for escaped in (":", "%3A"):
        pods.answers[f"{PODS}/words-1{escaped}8080/proxy/status"] = (503, {})
        pods.answers[f"{PODS}/words-2{escaped}8080/proxy/status"] = (200, "<html>")
    result = run("words")
    assert result.exit_code == 0, result.output
    assert row(result.output, "words-1")[-1] == "does not answer"
    assert row(result.output, "words-2")[-1] == "answers with something else than a status"
    ready = pod("words-1", conditions=[{"type": "Ready", "status": "True"}])
    pods.answers[PODS] = (200, {"items": [ready]})
    assert "spec.networkPolicy" in row(run("words").output, "words-1")[-1]


def test_replicas_of_the_local_host(tmp_path):
    """Without a name it looks at what `dev up` runs: a status that an earlier process has left does not count."""
    manifest = tmp_path / "streamsapp.yaml"
    spec = {
        "applicationId": "words",
        "image": "words",
        "app": {"entrypoint": "words:topology"},
        "kafka": {"bootstrapServers": ["localhost:9092"]},
    }
    document = {"apiVersion": "streams.millrace.dev/v1alpha1", "kind": "StreamsApp", "metadata": {"name": "words"}}
    manifest.write_text(json.dumps(document | {"spec": spec}))
    place = LocalDirectory.of("words", tmp_path / "data")
    options = ("-f", str(manifest), "--dir", str(place.root))
    result = run(*options)
    assert result.exit_code == 1
    assert "millrace dev up" in result.stderr
    with place.host(manifest) as note:
        views = [ReplicaView(f"words-{n}", 100 + n, "running", 1, 0, 1.0, 3, "") for n in (0, 1)]
        note.set_replicas(tuple(views))
        for n, pid in ((0, 100), (1, 99)):
            place.status(f"words-{n}").parent.mkdir()
            write_status(status(task("0_0"), pid=pid), place.status(f"words-{n}"))
        result = run(*options, "--json")
    assert result.exit_code == 0, result.output
    first, second = json.loads(result.stdout)["instances"]
    assert (first["state"], first["status"]["pid"], first["restarts"]) == ("RUNNING", 100, 3)
    assert (second["state"], second["status"]) == ("running", None)


def test_namespace_without_a_name():
    """Options for Kubernetes without a name are a mistake that the error explains."""
    result = run("-n", "shop")
    assert result.exit_code == 2
    assert "give the StreamsApp's name" in result.stderr


def test_rates_are_measured_between_two_looks():
    """A task's rate is what its counter has grown by; the busiest comes first, one that restores before all."""
    view = TopView()
    before = status(task("0_0", 100), task("0_1", 100), task("1_0", state="RESTORING", remaining=9_000))
    after = status(
        task("0_0", 120), task("0_1", 900), task("1_0", state="RESTORING", remaining=8_000), time_ms=3_000
    )  # fmt: skip
    text = drawn(view, Snapshot("words", 1_000, (InstanceSnapshot("words-0", "RUNNING", before),)))
    assert row(text, "0_0")[4] == "-"
    text = drawn(view, Snapshot("words", 3_000, (InstanceSnapshot("words-0", "RUNNING", after),)))
    assert row(text, "0_0")[4] == "10"
    assert row(text, "0_1")[4] == "400"
    assert row(text, "1_0")[3:6] == ["RESTORING", "0", "8,000"]
    order = [line[2:5] for line in text.splitlines() if line[2:5] in {"0_0", "0_1", "1_0"}]
    assert order == ["1_0", "0_1", "0_0"]


def test_counters_of_another_process_are_not_compared():
    """A restarted instance has no rates until it was seen twice."""
    view = TopView()
    for n, records in enumerate((100, 40)):
        instance = InstanceSnapshot("words-0", "RUNNING", status(task("0_0", records), pid=n, time_ms=1_000 * n))
        text = drawn(view, Snapshot("words", 0, (instance,)))
        assert row(text, "0_0")[4] == "-"


def test_drops_of_all_instances_are_added_up():
    """By node and reason, with the last remark; what newer data has replaced comes last and is not in the total."""
    late = DroppedStatus("KSTREAM-AGGREGATE-3", "app.py:41", "late", "up to 3 min late", 800, last_ms=4_000)
    stale = DroppedStatus("KTABLE-SOURCE-1", "app.py:9", "out-of-order", "older than its row", 5_000, 0, harmless=True)
    instances = (
        InstanceSnapshot("words-0", "RUNNING", status(dropped=(late, stale))),
        InstanceSnapshot(
            "words-1", "RUNNING", status(dropped=(replace(late, records=12, last_ms=1_000, problem="late"),))
        ),
    )  # fmt: skip
    snapshot = Snapshot("words", 10_000, instances)
    assert snapshot.totals.dropped == 812
    text = drawn(TopView(), snapshot)
    assert row(text, "KSTREAM-AGGREGATE-3 (app.py:41)")[1:] == ["812", "6 s ago", "up to 3 min late"]
    assert text.index("KSTREAM-AGGREGATE-3") < text.index("KTABLE-SOURCE-1")


def test_a_low_terminal_shows_a_part_of_each_table():
    """With many tasks and instances the tables share the lines, and say how much is left out."""
    instances = tuple(
        InstanceSnapshot(f"words-{n}", "RUNNING", status(*(task(f"{n}_{p}", p) for p in range(20)))) for n in range(30)
    )
    text = drawn(TopView(height=50), Snapshot("words", 1_000, instances))
    assert len(text.splitlines()) <= 50
    assert "Tasks, restoring and busiest first, 5" in text
    assert "more not shown" in text
    assert "Tasks, restoring and busiest first, " not in drawn(TopView(), Snapshot("words", 1_000, instances))


def test_unknown_numbers_are_no_zeros():
    """What an instance does not know yet is a dash, alone and in the totals."""
    found = status(lag=InputLag(), processing=ProcessingStatus(), restoration=RestoreProgress(None, None))
    snapshot = Snapshot("words", 1_000, (InstanceSnapshot("words-0", "REBALANCING", found),))
    assert (snapshot.totals.lag, snapshot.totals.records_per_second, snapshot.totals.remaining_records) == (None,) * 3
    assert row(drawn(TopView(), snapshot), "words-0")[5:8] == ["-", "-", "-"]
