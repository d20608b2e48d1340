"""Totals, rates and disk usage in `/status`."""

from __future__ import annotations

import json
import urllib.request

import pytest
from tests.instance.support import expected_counts, last_counts, produce, running, settings, word_count
from tests.waiting import PATIENCE_S, wait_until

from millrace.dropped_records import DroppedRecords
from millrace.instance.activity import Activity, RateMeter, Totals
from millrace.instance.states import State
from millrace.instance.status_report import InstanceInfo, take_status


def status(streams):
    """Return an instance's answer to GET /status."""
    host, port = streams.health_address
    with urllib.request.urlopen(f"http://{host}:{port}/status", timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


@pytest.mark.broker
def test_static_member_that_returns_restores_and_moves_nothing(kafka, topic_factory, app, tmp_path):
    """In a rolling restart the returning member finds its state on disk and the other sees no rebalance; the numbers show it."""
    source, sink = topic_factory("in", partitions=2), topic_factory("out")
    lines = [f"w{number % 40}" for number in range(400)]

    def member(name):
        own = settings(kafka, app, tmp_path / name, group_instance_id=name, session_timeout_ms=45_000)
        return own | {"health.listener": "127.0.0.1:0"}

    with running(word_count(source, sink), member("pod-0")) as stays:
        with running(word_count(source, sink), member("pod-1")) as rolled:
            wait_until(lambda: status(stays)["task_counts"]["active"] == 1 == len(rolled.status().tasks), "shared")
            produce(kafka, source, lines, partitions=2)
            wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines), "counted")
            wait_until(lambda: status(stays)["processing"]["records_per_second"], "the rate is known")
        before = status(stays)
        with running(word_count(source, sink), member("pod-1")) as returned:
            wait_until(lambda: status(returned)["ready"], "ready")
            after, other = status(stays), status(returned)
    assert other["restoration"] == {"remaining_records": 0, "eta_seconds": 0.0, "restored_records": 0}
    assert after["group"] == before["group"]
    assert (after["group"]["protocol"], after["group"]["state"]) == ("classic", "STABLE")
    assert other["group"]["generation"] == after["group"]["generation"] >= 2
    assert other["group"]["rebalances"] == 1
    (thread,) = other["threads"]
    assert (thread["instance_id"], thread["member_state"]) == ("pod-1-1", "STABLE")
    assert thread["member_id"].startswith("pod-1-1-")
    assert other["task_counts"] == {"active": 1, "standby": 0, "warmup": 0, "restoring": 0}
    assert before["processing"]["records"] == 200
    assert 0 <= before["processing"]["busy_ratio"] <= 1
    assert before["lag"]["total"] == 0 == sum(before["lag"]["partitions"].values())
    assert 0 < before["storage"]["used_percent"] <= 100
    assert before["storage"]["bytes"] > 0
    assert before["credentials_stale"] is False


@pytest.mark.broker
def test_restored_records_are_counted_with_the_time_left(kafka, topic_factory, app, tmp_path):
    """An instance that lost its state counts every changelog record it reads, and estimates the seconds left."""
    source, sink = topic_factory("in"), topic_factory("out")
    lines = [f"w{number}" for number in range(2_000)]
    produce(kafka, source, lines)
    with running(word_count(source, sink), settings(kafka, app, tmp_path / "first")):
        wait_until(lambda: last_counts(kafka, sink) == expected_counts(lines), "counted")
    with running(word_count(source, sink), settings(kafka, app, tmp_path / "second")) as streams:
        restoration = streams.status().restoration
        assert restoration.restored_records == 2_000
        assert (restoration.remaining_records, restoration.eta_seconds) == (0, 0.0)


def test_totals_keep_what_ended_threads_have_done(tmp_path):
    """Replacing or removing a thread does not reduce the totals."""
    activity, first, second = Activity(tmp_path), Totals(10, 2, 5), Totals(1, 1, 0)
    assert activity.totals([first, second]).records == 11
    activity.ended(first)
    totals = activity.totals([second])
    assert (totals.records, totals.commits, totals.restored) == (11, 3, 5)


def test_time_left_is_not_known_before_something_was_restored(tmp_path):
    """With nothing to base an estimate on there is none, rather than a wrong one; with nothing left it is 0."""
    activity = Activity(tmp_path)
    assert activity.eta_s(0) == 0.0
    assert activity.eta_s(None) is None
    assert activity.eta_s(100) is None


def test_generation_counts_once_however_many_threads_are_in_it(tmp_path):
    """Two threads that join the same generation count as one rebalance."""
    activity = Activity(tmp_path)
    for generation in (4, 4, 5):
        activity.joined(generation)
    assert activity.rebalances == 2


def test_missing_directory_has_no_size(tmp_path):
    """Disk usage is unknown, not zero, until the state directory exists."""
    folder = tmp_path / "app"
    Activity(folder).measure([])
    absent = Activity(folder)
    absent.measure([])
    assert (absent.storage_used_percent, absent.storage_bytes) == (None, None)
    (folder / "0_0").mkdir(parents=True)
    (folder / "0_0" / "000001.sst").write_bytes(b"x" * 100_000)
    present = Activity(folder)
    present.measure([])
    assert present.storage_bytes is not None
    assert present.storage_bytes >= 100_000
    assert present.storage_used_percent is not None


def test_rate_forgets_what_is_older_than_its_window():
    """A burst long ago does not count, and a counter that restarts does not give a negative rate."""
    meter = RateMeter(10.0)
    meter.add(0.0, 0)
    assert meter.add(5.0, 1_000) == 200
    assert meter.add(30.0, 1_000) == 0
    assert meter.add(31.0, 3) is None
    assert meter.per_second is None


def test_status_names_the_pod(tmp_path, monkeypatch):
    """The status has the uid that the operator sets, so it knows which pod has answered; elsewhere it is empty."""
    for uid in ("", "8f3c"):
        monkeypatch.setenv("POD_UID", uid)
        assert (
            take_status(InstanceInfo("app"), lambda: (State.CREATED, ()), Activity(tmp_path), DroppedRecords()).pod_uid
            == uid
        )
