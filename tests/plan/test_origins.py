"""Operators that exchange their generated names, so that each would go on with the other's state."""

from __future__ import annotations

import pytest

from millrace.config import StreamsConfig
from millrace.dsl import (
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Repartitioned,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
)
from millrace.plan.diff import PlanVerdict, diff_plans
from millrace.plan.topology_plan import TopologyPlan
from millrace.serdes import Serdes

STRINGS = Consumed.with_(Serdes.string(), Serdes.string())
PAIRS = JoinWindows.of_time_difference_with_no_grace("1m")
WINDOWS = TimeWindows.of_size_with_no_grace("1m")
LAST = Suppressed.until_time_limit("1s", BufferConfig.unbounded())


def planned(add):
    """Return the plan of what a function adds to a builder."""
    builder = StreamsBuilder()
    add(builder)
    config = StreamsConfig.of({"application.id": "app", "default.value.serde": "string"})
    return builder.build(config).build(config).plan()


def two(operator, order, *, together=False):
    """Return the plan of one operator on each of two streams, in the order of the streams' names."""

    def add(builder):
        streams = {name: builder.stream(name, STRINGS) for name in "ab"}
        if together:
            streams["a"].merge(streams["b"]).to("all")
        for name in order:
            operator(builder, streams[name]).to(f"out-{name}")

    return planned(add)


def by_value(stream):
    """Return a stream grouped by value, which needs a repartition topic."""
    return stream.group_by(lambda _, value: value)


KINDS = {
    "count": lambda _, stream: stream.group_by_key().count().to_stream(),
    "reduce": lambda _, stream: stream.group_by_key().reduce(max).to_stream(),
    "windowed": lambda _, stream: stream.group_by_key().windowed_by(WINDOWS).count().to_stream(),
    "sessions": lambda _, s: (
        s.group_by_key().windowed_by(SessionWindows.of_inactivity_gap_with_no_grace("1m")).count().to_stream()
    ),
    "repartitioned count": lambda _, stream: by_value(stream).count().to_stream(),
    "repartitioned windows": lambda _, stream: by_value(stream).windowed_by(WINDOWS).reduce(max).to_stream(),
    "join": lambda _, stream: stream.join(stream.filter(lambda _, value: value), lambda a, b: a + b, PAIRS),
    "outer join": lambda _, stream: stream.outer_join(
        stream.filter(lambda _, value: value), lambda a, b: f"{a}{b}", PAIRS
    ),
    "repartition": lambda _, stream: stream.repartition(),
    "repartitioned table": lambda _, stream: stream.map(lambda k, v: (v, k)).to_table().to_stream(),
    "suppress": lambda _, stream: stream.group_by_key().count().suppress(LAST).to_stream(),
    "table's groups": lambda _, s: s.to_table().group_by(lambda k, v: (v, k)).count().to_stream(),
    "lookup": lambda _, s: s.map(lambda k, v: (v, k)).join(s.to_table(), lambda a, b: a + b),
}


def generated(plan):
    """Return the stores and repartition topics of a plan whose names were generated."""
    items = [(f"store {store.name}", store) for part in plan.subtopologies for store in part.stores]
    items += [
        (f"repartition topic {topic.name}", topic) for part in plan.subtopologies for topic in part.repartition_topics
    ]
    return {name for name, item in items if item.origin is not None}


@pytest.mark.parametrize("together", [False, True], ids=["two sub-topologies", "one sub-topology"])
@pytest.mark.parametrize("kind", KINDS)
def test_exchanged_operators_need_a_reset(kind, together):
    """If two operators change places, each name that they exchange is told with what it was, in both directions."""
    before, after = (two(KINDS[kind], order, together=together) for order in ("ab", "ba"))
    assert generated(before) == generated(after) != set()
    for old, new in ((before, after), (after, before)):
        result = diff_plans(old, new)
        assert result.verdict is PlanVerdict.NEEDS_RESET
        moved = [item for item in result.reasons if "is now what" in item.change]
        assert {f"{item.resource} {item.name}" for item in moved} == generated(old)
        assert all(item.needs_reset and "another operator" in item.why for item in moved)
        assert {"(made from a for out-a)", "(made from b for out-b)"} == {
            item.change[item.change.index("(") :] for item in moved
        }
    assert diff_plans(before, before).reasons == ()


def test_exchange_is_told_with_names_and_topics():
    """The message says which name is now what, and what to do."""
    old, new = (two(KINDS["count"], order, together=True) for order in ("ab", "ba"))
    first, second = sorted(store.name for part in old.subtopologies for store in part.stores)
    assert [str(reason) for reason in diff_plans(old, new).reasons] == [
        f"store {other} is now what {name} was (made from {topic} for out-{topic}): it would continue with the state of another "
        "operator. Generated names are numbered, and operators were exchanged, or added or removed before these. Restore "
        "their order"
        for name, other, topic in ((first, second, "a"), (second, first, "b"))
    ]


def counts_of_one_stream(*outputs, names=None):
    """Return the plan of a count of the same stream for each of these topics."""

    def add(builder):
        stream = builder.stream("a", STRINGS)
        for number, topic in enumerate(outputs):
            stream.group_by_key().count(names and names[number]).to_stream().to(topic)

    return planned(add)


def test_operators_that_differ_in_their_outputs():
    """Two counts of one stream are known by where their results go, and a new one in front takes over the first one's name."""
    old = counts_of_one_stream("x", "y")
    moved = [item.change.partition(" (")[0] for item in diff_plans(old, counts_of_one_stream("y", "x")).reasons]
    first, second = (store.name for store in old.subtopologies[0].stores)
    assert moved == [f"is now what {first} was", f"is now what {second} was"]
    (reason, *_) = diff_plans(counts_of_one_stream("x"), counts_of_one_stream("new", "x")).reasons
    assert (reason.name, reason.needs_reset) == (first, True)
    assert reason.change == f"now belongs to another operator, and what it was (made from a for x) is now {second}"


def test_names_that_are_given_tell_the_operators():
    """With the present names given, operators change places and keep their state; outputs can be exchanged, too."""
    old = counts_of_one_stream("x", "y")
    names = [store.name for store in old.subtopologies[0].stores]
    assert diff_plans(old, counts_of_one_stream("y", "x", names=names[::-1])).verdict is PlanVerdict.COMPATIBLE
    assert diff_plans(old, counts_of_one_stream("y", "x", names=names)).verdict is PlanVerdict.COMPATIBLE
    named = counts_of_one_stream("x", "y", names=names)
    assert all(store.origin is None for store in named.subtopologies[0].stores)


def test_another_step_is_no_exchange():
    """Operators whose steps or outputs have changed are still matched by position."""

    def counting(step, *, to="x"):
        def add(builder):
            step(builder.stream("a", STRINGS)).group_by_key().count().to_stream().to(to)
            builder.stream("b", STRINGS).group_by_key().count().to_stream().to("y")

        return planned(add)

    old = counting(lambda stream: stream.filter(lambda _, value: value))
    assert diff_plans(old, counting(lambda stream: stream.peek(print))).reasons == ()
    outputs = diff_plans(old, counting(lambda stream: stream.filter(lambda _, value: value), to="z"))
    assert outputs.verdict is PlanVerdict.COMPATIBLE


def test_step_before_one_of_two_operators():
    """A step before one of two operators renames both: the other one is recognised under the first one's old name."""

    def add(steps):
        def to_builder(builder):
            a, b = builder.stream("a", STRINGS), builder.stream("b", STRINGS)
            a.merge(b).to("all")
            for _ in range(steps):
                a = a.filter(lambda _, value: value)
            b.group_by_key().count().to_stream().to("y")
            a.group_by_key().count().to_stream().to("x")

        return planned(to_builder)

    old, new = add(0), add(4)
    before, after = ([store.name for store in plan.subtopologies[0].stores] for plan in (old, new))
    assert before[1] == after[0]
    reasons = [f"{item.name} {item.change.partition(' (')[0]}" for item in diff_plans(old, new).reasons]
    assert reasons == [f"{after[0]} is now what {before[0]} was", f"{before[0]} was renamed to {after[0]}"]


def test_plans_of_earlier_versions_have_no_origins():
    """Without origins names are matched by position, as before; the hash does not depend on them, and JSON keeps them."""
    plan = two(KINDS["repartitioned count"], "ab")
    assert TopologyPlan.from_json(plan.to_json()) == plan

    def without(item):
        stores = tuple(store.model_copy(update={"origin": None}) for store in item.stores)
        topics = tuple(topic.model_copy(update={"origin": None}) for topic in item.repartition_topics)
        return item.model_copy(update={"stores": stores, "repartition_topics": topics})

    earlier = plan.model_copy(update={"subtopologies": tuple(map(without, plan.subtopologies))})
    assert "origin" not in earlier.to_json()
    again = TopologyPlan.of("app", earlier.subtopologies, earlier.global_stores, None)
    assert again.hash == plan.hash
    assert diff_plans(earlier, plan).reasons == () == diff_plans(plan, earlier).reasons


def test_origin_of_a_named_repartition_topic():
    """Topics whose names were given have no origin, since their name says which one they are."""
    plan = planned(
        lambda builder: (
            builder.stream("a", STRINGS).repartition(Repartitioned.as_("r")).group_by_key(Grouped.as_("g")).count()
        )
    )
    (topic,) = (topic for part in plan.subtopologies for topic in part.repartition_topics)
    (store,) = (store for part in plan.subtopologies for store in part.stores)
    assert topic.origin is None
    assert store.origin.topics == ("a",)
