"""What a change of the topology means for the state of the running application."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config import StreamsConfig
from millrace.dsl import Consumed, Grouped, Materialized, StreamsBuilder
from millrace.plan.diff import PlanVerdict, diff_plans
from millrace.plan.topology_plan import (
    PlannedChangelogTopic,
    PlannedGlobalStore,
    PlannedRepartitionTopic,
    PlannedStore,
    PlannedSubtopology,
    TopologyPlan,
)
from millrace.serdes import Serdes

STRINGS = Consumed.with_(Serdes.string(), Serdes.string())


def plan(*build, **settings):
    """Return the plan of streams that functions add to a builder."""
    builder = StreamsBuilder()
    for add in build:
        add(builder)
    config = StreamsConfig.of({"application.id": "app", **settings})
    return builder.build(config).build(config).plan()


def counts(store="counts", source="in", sink="out", by="by-word"):
    """Return a function that adds a count by value."""

    def add(builder):
        grouped = builder.stream(source, STRINGS).group_by(lambda _, v: v, Grouped.as_(by))
        grouped.count(Materialized.as_(store)).to_stream().to(sink)

    return add


def passing(source="other", sink="copy"):
    """Return a function that adds a stream without state."""
    return lambda builder: builder.stream(source).to(sink)


def lines(old, new, *, needs_reset):
    """Return the changes of one verdict, as `resource name change`."""
    reasons = [item for item in diff_plans(old, new).reasons if item.needs_reset is needs_reset]
    return [f"{item.resource} {item.name} {item.change}" for item in reasons]


BASE = plan(counts())


def edited(number, **changes):
    """Return the base plan with fields of one sub-topology replaced."""
    parts = list(BASE.subtopologies)
    parts[number] = parts[number].model_copy(update=changes)
    return BASE.model_copy(update={"subtopologies": tuple(parts)})


def store(**changes):
    """Return the base plan's store with fields replaced."""
    return (BASE.subtopologies[1].stores[0].model_copy(update=changes),)


def test_same_topology_has_no_reasons():
    """The same plan is compatible, and there are no reasons."""
    result = diff_plans(BASE, plan(counts()))
    assert (result.verdict, result.reasons) == (PlanVerdict.COMPATIBLE, ())


def test_another_application_shares_nothing():
    """With another application id the contents are not compared."""
    assert lines(BASE, plan(counts(), **{"application.id": "b"}), needs_reset=True) == ["application app is now b"]


def test_renamed_store_leaves_its_state():
    """A renamed store is reported as renamed, not as removed and added."""
    assert lines(BASE, plan(counts(store="totals")), needs_reset=True) == ["store counts was renamed to totals"]


def test_removed_and_added_stores():
    """Removing a store needs a reset, an added one is restored."""
    both = edited(1, stores=(*store(), *store(name="more", changelog_topic="app-more-changelog")))
    assert lines(both, BASE, needs_reset=True) == ["store more was removed"]
    assert lines(BASE, both, needs_reset=True) == []
    assert lines(BASE, both, needs_reset=False) == ["store more was added"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"kind": "window"}, "store counts was key-value and is window"),
        ({"value_format": "headers"}, "store counts had the value format timestamped and has headers"),
        (
            {"changelog_topic": None},
            "store counts was backed by the changelog app-counts-changelog and is now backed by no topic",
        ),
        (
            {"changelog_topic": "in", "changelog_is_source": True},
            "store counts was backed by the changelog app-counts-changelog and is now backed by the input topic in",
        ),
    ],
)
def test_stores_that_cannot_read_their_state(changes, expected):
    """Kind, value format and changelog decide how state is found and read."""
    assert lines(BASE, edited(1, stores=store(**changes)), needs_reset=True) == [expected]


def test_moving_a_store_to_memory_is_compatible():
    """A store that moves between disk and memory is restored from its changelog, unless it is not logged."""
    assert lines(BASE, edited(1, stores=store(persistent=False)), needs_reset=False) == [
        "store counts is now kept in memory"
    ]
    unlogged = edited(1, stores=store(changelog_topic=None))
    there = edited(1, stores=store(changelog_topic=None, persistent=False))
    assert lines(unlogged, there, needs_reset=True) == ["store counts is now kept in memory"]


def test_renamed_repartition_topic():
    """A repartition topic is identified by its name."""
    new = plan(counts(by="by-text"))
    assert "repartition topic app-by-word-repartition was renamed to app-by-text-repartition" in lines(
        BASE, new, needs_reset=True
    )


def test_repartition_topic_with_other_partitions():
    """Setting a number of partitions where there was none may move keys."""
    topic = BASE.subtopologies[1].repartition_topics[0].model_copy(update={"partitions": 8})
    assert lines(BASE, edited(1, repartition_topics=(topic,)), needs_reset=True) == [
        "repartition topic app-by-word-repartition had as many partitions as its writers' inputs and has 8 partitions"
    ]


def test_topic_settings_are_compatible():
    """Changed settings of internal topics are reported, and need no reset."""
    new = plan(counts(), **{"topic.segment.ms": "60000"})
    told = lines(BASE, new, needs_reset=False)
    assert len(told) == 2
    assert "changelog topic app-counts-changelog is configured differently (segment.ms: None → 60000)" in told
    assert diff_plans(BASE, new).verdict is PlanVerdict.COMPATIBLE


def test_operator_added_first_moves_the_others():
    """Sub-topologies are numbered in the order of their sources: a new one in front changes every task's id."""
    told = lines(BASE, plan(passing(), counts()), needs_reset=True)
    assert told == ["sub-topology 0 is now 1", "sub-topology 1 is now 2"]


def test_operator_added_last_moves_nothing():
    """A new sub-topology after the others is compatible."""
    new = plan(counts(), passing())
    assert lines(BASE, new, needs_reset=True) == []
    assert lines(BASE, new, needs_reset=False) == [
        "source topic other is newly read by sub-topology 2",
        "sink topic copy is newly written by sub-topology 2",
    ]


def test_inputs_of_state_decide_its_partitions():
    """Another input of a sub-topology with state may change the number of tasks."""
    new = plan(counts(source=["in", "more"]))
    assert lines(BASE, new, needs_reset=True) == ["source topic more is newly read by sub-topology 0"]
    assert lines(new, BASE, needs_reset=True) == ["source topic more is no longer read by sub-topology 0"]


def test_another_input_for_the_same_state():
    """Replacing an input is reported as both removed and added; the repartition topic keeps what came from the old one."""
    assert lines(BASE, plan(counts(source="new")), needs_reset=True) == [
        "source topic in is no longer read by sub-topology 0",
        "source topic new is newly read by sub-topology 0",
    ]


def test_inputs_without_state_are_free():
    """A stateless sub-topology may change its inputs and outputs freely."""
    old, new = plan(passing()), plan(passing(source=["other", "more"], sink="elsewhere"))
    assert diff_plans(old, new).verdict is PlanVerdict.COMPATIBLE
    assert len(diff_plans(old, new).reasons) == 3


def test_dead_letter_topic_comes_and_goes():
    """A changed dead-letter topic is reported, and needs no reset."""
    old, new = (plan(counts(), **{"errors.dead.letter.queue.topic.name": name}) for name in ("failed", "rejected"))
    assert lines(BASE, new, needs_reset=False) == ["dead-letter topic rejected is newly written"]
    assert lines(new, BASE, needs_reset=False) == ["dead-letter topic rejected is no longer written"]
    assert lines(old, new, needs_reset=False) == [
        "dead-letter topic failed is no longer written",
        "dead-letter topic rejected is newly written",
    ]
    for one, other in ((BASE, new), (new, BASE), (old, new)):
        assert diff_plans(one, other).verdict is PlanVerdict.COMPATIBLE


def test_json_for_machines():
    """The JSON has the verdict and each reason, in camelCase."""
    content = json.loads(diff_plans(BASE, plan(counts(store="totals"))).to_json())
    assert content["verdict"] == "NeedsReset"
    assert content["reasons"][0]["resource"] == "store"
    assert content["reasons"][0]["needsReset"] is True


NAMES = st.sampled_from("abcd")


@st.composite
def plans(draw):
    """Give plans in which every store and topic has one place, as in those of topologies."""
    places = st.integers(0, 2)
    stores = draw(
        st.dictionaries(
            NAMES, st.tuples(places, st.sampled_from(["key-value", "window"]), st.booleans(), st.booleans())
        )
    )
    repartition = draw(st.dictionaries(NAMES, st.tuples(places, st.sampled_from([None, 1, 2]))))
    sources = draw(st.dictionaries(NAMES, places))
    parts = []
    for number in range(3):
        internal = {f"app-{n}-repartition": count for n, (place, count) in repartition.items() if place == number}
        own = [
            PlannedStore(
                name=name,
                kind=kind,
                value_format="plain",
                persistent=persistent,
                changelog_topic=f"app-{name}-changelog" if logged else None,
            )
            for name, (place, kind, persistent, logged) in stores.items()
            if place == number
        ]
        parts.append(
            PlannedSubtopology(
                id=number,
                source_topics=tuple(
                    sorted({*internal, *(f"in-{n}" for n, place in sources.items() if place == number)})
                ),
                sink_topics=tuple(sorted(draw(st.sets(NAMES)))),
                stores=tuple(own),
                repartition_topics=tuple(PlannedRepartitionTopic(name=n, partitions=c) for n, c in internal.items()),
                changelog_topics=tuple(PlannedChangelogTopic(name=s.changelog_topic) for s in own if s.changelog_topic),
            )
        )
    tables = tuple(
        PlannedGlobalStore(name=f"g{name}", topic=draw(NAMES), kind="key-value", value_format="plain", persistent=True)
        for name in draw(st.sets(NAMES))
    )
    return TopologyPlan(application_id="app", hash="0", subtopologies=tuple(parts), global_stores=tables)


@given(plans())
def test_no_plan_differs_from_itself(one):
    """The difference of any plan and itself is empty."""
    assert diff_plans(one, one).reasons == ()
    assert diff_plans(one, TopologyPlan.from_json(one.to_json())).verdict is PlanVerdict.COMPATIBLE


@given(plans(), plans())
def test_differences_are_seen_both_ways(one, other):
    """A change and its reverse are both reported, though the verdicts may differ; nothing goes unnoticed."""
    there, back = diff_plans(one, other).reasons, diff_plans(other, one).reasons
    assert bool(there) == bool(back) == (one != other)
    assert {item.resource for item in there} == {item.resource for item in back}
