"""A rolling restart of static members under load: every member comes back to its tasks and its state."""

from __future__ import annotations

from itertools import count

import pytest
from tests.instance.support import Feeder, Replica, expected_counts, last_counts, settings
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

NAMES = ("a", "b", "c")
PARTITIONS = 6


def tasks(replica, role):
    """Return the ids of a replica's running tasks with a role."""
    return {
        task["id"] for task in replica.status().get("tasks", ()) if (task["role"], task["state"]) == (role, "RUNNING")
    }


def spread(replicas):
    """Return whether each replica has a third of the tasks, and a third of the standbys."""
    return all(len(tasks(each, role)) == PARTITIONS / len(NAMES) for each in replicas for role in ("active", "standby"))


def log_of(replica):
    """Describe a replica."""
    return lambda: f"{replica.name}: {replica.status()}\n{replica.log()[-3000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_rolling_restart_of_static_members_moves_and_restores_nothing(kafka, topic_factory, tmp_path, app, guarantee):
    """Zero rebalances and zero restored records while three processes, with standbys, are replaced one by one under load."""
    source, sink = topic_factory("in", partitions=PARTITIONS), topic_factory("out", partitions=PARTITIONS)
    replicas = [
        Replica(
            settings(
                kafka,
                app,
                tmp_path / name,
                group_instance_id=name,
                num_standby_replicas=1,
                session_timeout_ms=45_000,
                processing_guarantee=guarantee,
            ),
            source,
            sink,
            tmp_path,
            name,
        )
        for name in NAMES
    ]
    lines = ((number % PARTITIONS, f"w{number % 300}") for number in count())
    feeder = Feeder(kafka, source, lines, rate=200)
    try:
        for replica in replicas:
            replica.start()
        wait_until(lambda: spread(replicas), lambda: "\n".join(log_of(each)() for each in replicas), 120)
        before = {each.name: (tasks(each, "active"), tasks(each, "standby")) for each in replicas}
        generations = {each.status()["group"]["generation"] for each in replicas}
        assert len(generations) == 1
        for replica in replicas:
            assert replica.stop(60) == 0
            replica.start()
            pid = replica.process.pid

            def is_back(replica=replica, pid=pid):
                found = replica.status()
                has = (tasks(replica, "active"), tasks(replica, "standby"))
                return found.get("pid") == pid and has == before[replica.name] and found["processing"]["records"] > 0

            wait_until(is_back, log_of(replica), 120)
        assert {each.status()["group"]["generation"] for each in replicas} == generations
        assert [each.status()["group"]["rebalances"] for each in replicas] == [1, 1, 1]
        assert [each.status()["restoration"]["restored_records"] for each in replicas] == [0, 0, 0]
        expected = expected_counts(feeder.stop())
        wait_until(lambda: last_counts(kafka, sink, partitions=PARTITIONS) == expected, "counted", 120)
    finally:
        for replica in replicas:
            if replica.process is not None:
                replica.kill()
