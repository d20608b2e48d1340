"""Static members on a real broker: a restart that the group does not notice."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from functools import partial

import pytest
from tests.instance.support import (
    GUARANTEES,
    Feeder,
    Instance,
    expected_counts,
    last_counts,
    own_settings,
    produce,
    replicated,
    same_counts,
    word_count,
    words,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.broker


def has_processed(instance):
    """Return whether an instance has processed anything."""
    return instance.streams.status().processing.records > 0


def test_a_static_member_returns_to_its_standby_without_a_rebalance(kafka, topic_factory, tmp_path, app):
    """It has its old assignment, and reads on from what it has on disk."""
    source, sink = topic_factory("in"), topic_factory("out")
    topology, lines = word_count(source, sink), words(50)

    def config(name):
        return replicated(kafka, app, tmp_path / name, group_instance_id=name)

    with ExitStack() as stack:
        active = Instance(stack, topology, config("a")).running()
        with ExitStack() as inner:
            standby = Instance(inner, topology, config("b"))
            wait_until(lambda: standby.tasks("standby"), "a standby")
            produce(kafka, source, lines)
            wait_until(lambda: active.counts("0_0") == expected_counts(lines), "counted")
            wait_until(lambda: same_counts(active, standby, "0_0"), "caught up")
        generation = active.streams.status().group.generation
        again = Instance(stack, topology, config("b"))
        wait_until(lambda: again.tasks("standby") and again.updated.starts, "it has its task")
        wait_until(lambda: same_counts(active, again, "0_0"), "a standby again")
        [(_, _, start)] = again.updated.starts
        assert start == 50
        assert active.streams.status().group.generation == generation


@GUARANTEES
@pytest.mark.parametrize("standbys", [0, 1])
def test_a_rolling_restart_of_static_members_moves_and_restores_nothing(
    kafka, topic_factory, tmp_path, app, guarantee, standbys
):
    """Under load, three instances restart one after the other: no rebalance, no record restored, none lost or counted twice."""
    source, sink = topic_factory("in", partitions=3), topic_factory("out", partitions=3)
    topology = word_count(source, sink)

    def config(name):
        return own_settings(
            kafka,
            app,
            tmp_path / name,
            group_instance_id=name,
            num_standby_replicas=standbys,
            processing_guarantee=guarantee,
        )

    with ExitStack() as stack:
        running, stacks = {}, {}
        for name in "abc":
            stacks[name] = stack.enter_context(ExitStack())
            running[name] = Instance(stacks[name], topology, config(name))
        wait_until(
            lambda: all(
                len(each.tasks("active")) == 1 and len(each.tasks("standby")) == standbys for each in running.values()
            ),
            lambda: f"a task each: {[each.tasks('active') for each in running.values()]}",
        )
        tasks = {name: each.tasks("active") for name, each in running.items()}
        feeder = Feeder(kafka, source, ((n % 3, f"w{n % 30}") for n in itertools.count()), rate=100)
        stack.callback(feeder.stop)
        wait_until(lambda: len(last_counts(kafka, sink, partitions=3)) == 30, "output")
        generations = {each.streams.status().group.generation for each in running.values()}
        assert len(generations) == 1
        for name in "abc":
            assert running[name].streams.close(60)
            running[name] = Instance(stacks[name], topology, config(name)).running()
            wait_until(partial(has_processed, running[name]), f"{name} processes again")
            assert running[name].tasks("active") == tasks[name]
            assert running[name].restored.records.total() == 0
        lines = feeder.stop()
        wait_until(lambda: last_counts(kafka, sink, partitions=3) == expected_counts(lines), "counted")
        assert {each.streams.status().group.generation for each in running.values()} == generations
        assert {name: each.tasks("active") for name, each in running.items()} == tasks
