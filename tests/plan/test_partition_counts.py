"""How partition counts follow from the input topics, as Kafka Streams works them out."""

import pytest

from millrace.errors import TopologyError
from millrace.plan.partition_counts import resolve_partition_counts
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedRepartitionTopic, PlannedSubtopology, TopologyPlan


def plan(*subtopologies):
    """Return a plan of these sub-topologies, numbered in order."""
    return TopologyPlan(
        application_id="a",
        hash="",
        subtopologies=tuple(PlannedSubtopology(id=n, **fields) for n, fields in enumerate(subtopologies)),
    )


def repartition(name, partitions=None):
    """Return a repartition topic; with a count it is enforced."""
    return PlannedRepartitionTopic(name=name, partitions=partitions, enforced=partitions is not None)


def test_a_repartition_topic_has_the_largest_count_of_its_writers_inputs():
    """Two sub-topologies write to it: the larger input decides; the changelog follows the tasks that read it."""
    counts = resolve_partition_counts(
        plan(
            {"source_topics": ("x",), "sink_topics": ("r",)},
            {"source_topics": ("y",), "sink_topics": ("r",)},
            {
                "source_topics": ("r",),
                "repartition_topics": (repartition("r"),),
                "changelog_topics": (PlannedChangelogTopic(name="c"),),
            },
        ),
        {"x": 2, "y": 5},
    )
    assert counts.topics["r"] == 5
    assert counts.tasks == {0: 2, 1: 5, 2: 5}
    assert counts.changelogs == {"c": 5}


def test_counts_pass_through_chains_of_repartition_topics():
    """The count of the input reaches the last topic, in whatever order they are listed."""
    counts = resolve_partition_counts(
        plan(
            {"source_topics": ("r2",), "repartition_topics": (repartition("r2"),)},
            {"source_topics": ("r1",), "sink_topics": ("r2",), "repartition_topics": (repartition("r1"),)},
            {"source_topics": ("x",), "sink_topics": ("r1",)},
        ),
        {"x": 3},
    )
    assert (counts.topics["r1"], counts.topics["r2"]) == (3, 3)


def test_explicit_counts_win_and_pass_on():
    """Repartitioned.with_number_of_partitions is kept, and decides for what follows."""
    counts = resolve_partition_counts(
        plan(
            {"source_topics": ("x",), "sink_topics": ("r1",)},
            {"source_topics": ("r1",), "sink_topics": ("r2",), "repartition_topics": (repartition("r1", 7),)},
            {"source_topics": ("r2",), "repartition_topics": (repartition("r2"),)},
        ),
        {"x": 2},
    )
    assert (counts.topics["r1"], counts.topics["r2"]) == (7, 7)


def test_joined_repartition_topics_take_the_input_s_count():
    """A repartition topic that is joined with an input topic gets that topic's count."""
    counts = resolve_partition_counts(
        plan(
            {"source_topics": ("x",), "sink_topics": ("r",)},
            {
                "source_topics": ("r", "y"),
                "repartition_topics": (repartition("r"),),
                "copartition_groups": (("r", "y"),),
            },
        ),
        {"x": 8, "y": 3},
    )
    assert counts.topics["r"] == 3


def test_joined_input_topics_must_have_equal_counts():
    """The error names both topics with their counts."""
    with pytest.raises(TopologyError, match=r"x \(2\), y \(3\)"):
        resolve_partition_counts(
            plan({"source_topics": ("x", "y"), "copartition_groups": (("x", "y"),)}), {"x": 2, "y": 3}
        )


def test_an_enforced_count_that_cannot_be_joined_is_refused():
    """An explicit count that differs from the joined input's is an error, not silently changed."""
    with pytest.raises(TopologyError, match=r"r \(4\), y \(3\)"):
        resolve_partition_counts(
            plan(
                {
                    "source_topics": ("r", "y"),
                    "repartition_topics": (repartition("r", 4),),
                    "copartition_groups": (("r", "y"),),
                }
            ),
            {"y": 3},
        )


def test_merged_inputs_need_no_equal_counts():
    """Without a co-partition group there are as many tasks as the largest input has partitions."""
    counts = resolve_partition_counts(plan({"source_topics": ("x", "y")}), {"x": 2, "y": 6})
    assert counts.tasks == {0: 6}


def test_patterns_match_whole_names_and_never_internal_topics():
    """A pattern source reads what matches now; the application's own topics do not count."""
    counts = resolve_partition_counts(
        plan(
            {
                "source_patterns": ("in-.*",),
                "repartition_topics": (repartition("in-r", 2),),
                "changelog_topics": (PlannedChangelogTopic(name="in-c"),),
            }
        ),
        {"in-1": 2, "in-2": 4, "in-c": 9, "xin-3": 5},
    )
    assert counts.sources == {0: ("in-1", "in-2")}
    assert counts.tasks == {0: 4}


def test_a_pattern_without_matches_has_no_tasks_and_no_changelog():
    """Nothing is created for a sub-topology that reads nothing yet."""
    counts = resolve_partition_counts(
        plan({"source_patterns": ("none",), "changelog_topics": (PlannedChangelogTopic(name="c"),)}), {}
    )
    assert counts.tasks == {0: 0}
    assert counts.changelogs == {}


def test_a_circle_of_repartition_topics_takes_what_is_known():
    """Two sub-topologies that feed each other get the count of the input that enters the cycle."""
    counts = resolve_partition_counts(
        plan(
            {"source_topics": ("x", "r2"), "sink_topics": ("r1",), "repartition_topics": (repartition("r2"),)},
            {"source_topics": ("r1",), "sink_topics": ("r2",), "repartition_topics": (repartition("r1"),)},
        ),
        {"x": 3},
    )
    assert (counts.topics["r1"], counts.topics["r2"]) == (3, 3)


def test_a_count_that_nothing_gives_is_an_error():
    """A repartition topic that nobody writes needs an explicit count."""
    with pytest.raises(TopologyError, match="with_number_of_partitions"):
        resolve_partition_counts(plan({"source_topics": ("r",), "repartition_topics": (repartition("r"),)}), {})
