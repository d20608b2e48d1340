"""The document `/status` is read as it was written, by whatever version of Millrace."""

import json
from dataclasses import asdict

import pytest

from millrace.instance_status import (
    DiskUsage,
    DroppedStatus,
    InputLag,
    MembershipStatus,
    ProcessingStatus,
    RestoreProgress,
    StreamsStatus,
    TaskCounts,
    TaskStatus,
    ThreadStatus,
    parse_status,
    read_status,
    write_status,
)

STATUS = StreamsStatus(
    time_ms=1_700_000_000_123,
    application_id="orders",
    process_id="p-1",
    pid=7,
    state="RUNNING",
    threads=(ThreadStatus("orders-1", "RUNNING", leader=True, records=5, commits=2, waits_for="metadata"),),
    tasks=(
        TaskStatus("0_0", "orders-1", "RUNNING", 5, ("counts",)),
        TaskStatus("0_1", "orders-1", "RUNNING", 0, ("counts",), role="standby", remaining=None),
    ),
    group=MembershipStatus("streams", "STABLE", 3, 2),
    task_counts=TaskCounts(active=3, standby=1, warmup=2, restoring=1),
    restoration=RestoreProgress(remaining_records=7, eta_seconds=1.5),
    lag=InputLag(total=9, partitions={"in-0": 9}),
    processing=ProcessingStatus(5, 2, 1.25, 0.5),
    dropped=(DroppedStatus("AGGREGATE", "app.py:41", "late", "too late", 812, 1_700_000_000_000, harmless=True),),
    storage=DiskUsage(12.5, 1 << 40),
    credentials_stale=True,
    refused_tasks=("0_1",),
    error="boom",
    topology_hash="abc",
    pod_uid="u-1",
)


def test_document_is_read_as_it_was_written(tmp_path):
    """Every field comes back, of nested objects too."""
    assert parse_status(json.loads(json.dumps(STATUS.to_dict()))) == STATUS
    path = tmp_path / "status.json"
    assert read_status(path) is None
    write_status(STATUS, path)
    assert read_status(path) == STATUS
    path.write_text("{")
    assert read_status(path) is None


def test_document_of_an_older_version_is_read():
    """Fields that it does not have are unknown."""
    told = parse_status({"state": "RUNNING"})
    assert (told.state, told.task_counts.active, told.lag.total, told.processing.busy_ratio) == (
        "RUNNING",
        0,
        None,
        None,
    )


def test_document_of_a_newer_version_is_read():
    """Fields that this version does not know are ignored, and so are entries and parts that have become something else."""
    tasks = [{**asdict(STATUS.tasks[0]), "colour": "red"}, "0_2"]
    told = parse_status({**STATUS.to_dict(), "colour": "red", "tasks": tasks, "group": "none", "refused_tasks": None})
    assert (told.tasks, told.group, told.refused_tasks) == (STATUS.tasks[:1], MembershipStatus(), ())


def test_what_a_document_does_not_say_is_unknown():
    """A standby that does not say how far it is behind has not caught up."""
    told = parse_status({"state": "RUNNING", "tasks": [{"id": "0_1", "role": "standby"}], "restoration": {}})
    assert [task.remaining for task in told.tasks] == [None]
    assert (told.restoration.remaining_records, told.restoration.eta_seconds) == (None, None)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "RUNNING",
        {"state": 1},
        {"state": "RUNNING", "task_counts": {"active": "many"}},
        {"state": "RUNNING", "task_counts": {"active": [1]}},
        {"state": "RUNNING", "task_counts": {"active": float("inf")}},
        {"state": "RUNNING", "restoration": {"eta_seconds": 10**400}},
    ],
)
def test_what_is_no_status_is_refused(document):
    """A pod runs its user's code, so anything may come from its address."""
    with pytest.raises(ValueError, match="not a status"):
        parse_status(document)
