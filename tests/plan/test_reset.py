"""What a reset does, worked out from what is observed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.errors import ActiveGroupError
from millrace.plan.reset import (
    ActiveMember,
    ObservedApplication,
    OffsetTarget,
    Start,
    input_topics,
    internal_topics,
    looks_internal,
    plan_reset,
)
from millrace.plan.topology_plan import PlannedChangelogTopic, PlannedRepartitionTopic, PlannedSubtopology, TopologyPlan
from millrace.records import TopicPartition

PLAN = TopologyPlan(
    application_id="app",
    hash="0",
    subtopologies=(
        PlannedSubtopology(
            id=0, source_topics=("in",), source_patterns=("logs-.*",), sink_topics=("app-w-repartition",)
        ),
        PlannedSubtopology(
            id=1,
            source_topics=("app-w-repartition",),
            repartition_topics=(PlannedRepartitionTopic(name="app-w-repartition"),),
            changelog_topics=(PlannedChangelogTopic(name="app-counts-changelog"),),
        ),
    ),
)
TOPICS = {
    "in": 2,
    "logs-a": 1,
    "out": 1,
    "app-w-repartition": 2,
    "app-counts-changelog": 2,
    "app-old-changelog": 2,
    "app-eu-x-changelog": 1,
}
IN = [TopicPartition("in", 0), TopicPartition("in", 1)]
SEEN = ObservedApplication(
    topics=TOPICS,
    groups=frozenset({"app", "app-eu", "other"}),
    committed={IN[0]: 50, TopicPartition("app-w-repartition", 0): 7},
    earliest={IN[0]: 10, IN[1]: 0},
    latest={IN[0]: 60, IN[1]: 5},
    at_time={IN[0]: 33, IN[1]: 5},
)


@pytest.mark.parametrize(
    ("name", "internal"),
    [
        ("app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog", True),
        ("app-words-repartition", True),
        ("app-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000006-topic", True),
        ("app-KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-0000000014-topic", True),
        ("app-join-subscription-response-topic", True),
        ("application-words-repartition", False),
        ("app-orders", False),
        ("app-changelog-copy", False),
    ],
)
def test_internal_topics_are_known_by_name(name, internal):
    """Their names begin with the application's id and end with Kafka Streams' suffixes."""
    assert looks_internal(name, "app") is internal


def test_plan_decides_the_topics():
    """With a plan its internal topics are deleted and its inputs (by name and pattern) are reset; leftovers are mentioned."""
    assert internal_topics("app", SEEN, PLAN) == ("app-counts-changelog", "app-w-repartition")
    assert input_topics("app", SEEN, PLAN) == ("in", "logs-a")
    with_logs = replace(
        SEEN,
        earliest={**SEEN.earliest, TopicPartition("logs-a", 0): 0},
        latest={**SEEN.latest, TopicPartition("logs-a", 0): 0},
    )
    actions = plan_reset("app", with_logs, PLAN)
    assert any("app-old-changelog, which is not in this topology" in note for note in actions.notes)


def test_dead_letters_stay():
    """The dead-letter topic belongs to the user, as outputs do: with a plan it stays, whatever its name."""
    plan = PLAN.model_copy(update={"dead_letter_topic": "app-old-changelog"})
    assert internal_topics("app", SEEN, plan) == ("app-counts-changelog", "app-w-repartition")
    assert "app-old-changelog" not in input_topics("app", SEEN, plan)


def test_names_decide_without_a_plan():
    """Without one, topics named like the application's are deleted, except those of an application with a longer name."""
    assert internal_topics("app", SEEN, None) == ("app-counts-changelog", "app-old-changelog", "app-w-repartition")
    assert input_topics("app", SEEN, None) == ("in",)
    assert input_topics("app", SEEN, None, ["out", "missing"]) == ("in", "out")
    actions = plan_reset("app", SEEN)
    assert actions.notes == ("Not deleted: app-eu-x-changelog, as it belongs to application app-eu",)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (OffsetTarget(), [10, 0]),
        (OffsetTarget(Start.LATEST), [60, 5]),
        (OffsetTarget(Start.OFFSET, 20), [20, 5]),
        (OffsetTarget(Start.OFFSET, 3), [10, 3]),
        (OffsetTarget(Start.TIMESTAMP_MS, 1), [33, 5]),
        (OffsetTarget(Start.SHIFT, -5), [45, 0]),
        (OffsetTarget(Start.SHIFT, 100), [60, 5]),
    ],
)
def test_offsets_stay_within_the_partitions(target, expected):
    """Each target stays between the first and the next offset; shifting starts at the first if none is committed."""
    actions = plan_reset("app", SEEN, target=target)
    assert actions.set_offsets == dict(zip(IN, expected, strict=True))


def test_active_group_is_refused():
    """The error names the members and says what to do; force removes them."""
    seen = replace(SEEN, members=(ActiveMember("m", "pod-0-1", "app-pod-0", "/10.0.0.1"),))
    with pytest.raises(
        ActiveGroupError, match=r"1 active member, app-pod-0 \(10\.0\.0\.1, static pod-0-1\).*Stop it first"
    ):
        plan_reset("app", seen)
    assert plan_reset("app", seen, force=True).remove_members == seen.members


def test_members_that_have_ended_are_removed():
    """A member whose process is known to have ended does not hold up a reset; another one still does, and is named alone."""
    dead = ActiveMember("m", "pod-0-1", "app-pod-0", "/10.0.0.1")
    other = ActiveMember("n", None, "app-pod-1", "/10.0.0.2")

    def has_ended(member):
        return member == dead

    seen = replace(SEEN, members=(dead,))
    assert plan_reset("app", seen, has_ended=has_ended).remove_members == (dead,)
    with pytest.raises(ActiveGroupError, match=r"1 active member, app-pod-1 \(10\.0\.0\.2\)\. Stop it"):
        plan_reset("app", replace(SEEN, members=(dead, other)), has_ended=has_ended)
