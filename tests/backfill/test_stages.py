"""Sub-topologies run after those that they read from; those that feed each other run together."""

from __future__ import annotations

from millrace.backfill.stages import plan_stages, shuffled_topics
from millrace.plan.partition_counts import PartitionCounts
from millrace.plan.topology_plan import PlannedSubtopology, TopologyPlan
from millrace.records import TaskId


def planned(**parts: tuple[str, str]):
    """Return the plan and counts of sub-topologies `_<id>=(sources, sinks)`, with topics of one letter and two tasks each."""
    items = tuple(
        PlannedSubtopology(id=int(name[1:]), source_topics=tuple(sources), sink_topics=tuple(sinks))
        for name, (sources, sinks) in parts.items()
    )
    topics = {topic for item in items for topic in item.source_topics}
    counts = PartitionCounts(
        topics=dict.fromkeys(topics, 2),
        tasks={item.id: 2 for item in items},
        sources={item.id: item.source_topics for item in items},
        changelogs={},
    )
    return TopologyPlan.of("app", items, (), None), counts


def numbers(stages):
    """Return the sub-topologies of each stage."""
    return [sorted({task.subtopology for task in stage.tasks}) for stage in stages]


def test_writers_come_before_readers():
    """The order of ids does not matter."""
    stages = plan_stages(*planned(_0=("bc", ""), _1=("a", "b"), _2=("b", "c")))
    assert numbers(stages) == [[1], [2], [0]]
    assert stages[2].upstream == {"b", "c"}
    assert not stages[2].circular


def test_each_task_has_one_place():
    """A stage lists its tasks by sub-topology and partition."""
    [stage] = plan_stages(*planned(_0=("ab", "x")))
    assert stage.tasks == (TaskId(0, 0), TaskId(0, 1))
    assert (stage.sources, stage.upstream) == ({"a", "b"}, set())


def test_subtopologies_that_feed_each_other_are_one_stage():
    """It comes after what feeds it and before what reads from it."""
    plan, counts = planned(_0=("d", "e"), _1=("ac", "bd"), _2=("b", "c"), _3=("z", "a"))
    stages = plan_stages(plan, counts)
    assert numbers(stages) == [[3], [1, 2], [0]]
    assert stages[1].circular == {"b", "c"}
    assert stages[1].upstream == {"a", "b", "c"}
    assert shuffled_topics(plan, counts) == {"a", "b", "c", "d"}


def test_a_subtopology_can_feed_itself():
    """Its own topic is circular."""
    [stage] = plan_stages(*planned(_0=("ab", "b")))
    assert stage.circular == {"b"}
