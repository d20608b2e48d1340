"""Stores and repartition topics that only have another name, and what that costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.config import StreamsConfig
from millrace.dsl import (
    BufferConfig,
    Consumed,
    Grouped,
    JoinWindows,
    Materialized,
    Named,
    Repartitioned,
    StreamJoined,
    StreamsBuilder,
    Suppressed,
    TableJoined,
)
from millrace.plan.diff import diff_plans
from millrace.plan.names import is_generated, naming_of_store, naming_of_topic
from millrace.serdes import Serdes

STRINGS = Consumed.with_(Serdes.string(), Serdes.string())
LAST = Suppressed.until_time_limit("1s", BufferConfig.unbounded())
PAIRS = JoinWindows.of_time_difference_with_no_grace("1m")


def built(build, **settings):
    """Return the topology that a function adds to a builder."""
    builder = StreamsBuilder()
    build(builder)
    config = StreamsConfig.of({"application.id": "app", "default.value.serde": "string", **settings})
    return builder.build(config).build(config)


def renames(old, new):
    """Return the renames, without their reasons."""
    reasons = diff_plans(old.plan(), new.plan()).reasons
    return [f"{item.resource} {item.name} {item.change}" for item in reasons if "renamed" in item.change]


def reason(old, new, name):
    """Return the reason about one resource."""
    (found,) = [item for item in diff_plans(old.plan(), new.plan()).reasons if item.name == name]
    return found


def counting(*steps, name=None, by=None):
    """Return a function that counts values after some steps that change nothing."""

    def build(builder):
        stream = builder.stream("in", STRINGS)
        for step in steps:
            stream = step(stream)
        grouped = stream.group_by(lambda _, value: value, None if by is None else Grouped.as_(by))
        grouped.count(None if name is None else Materialized.as_(name)).to_stream().to("out")

    return build


def test_rename_says_what_it_costs():
    """Where the state stays, from where it can be computed again, and how to keep it."""
    found = reason(built(counting(name="counts", by="w")), built(counting(name="totals", by="w")), "counts")
    assert (found.change, found.needs_reset, found.leaves_behind) == ("was renamed to totals", True, True)
    assert found.why == (
        "its state stays in the old changelog, app-counts-changelog, and totals starts empty. A reset computes it again from in, "
        'as far back as records are kept. To keep it, give the store its old name: Materialized.as_("counts")'
    )


def test_renamed_topic_says_what_it_costs():
    """Records on their way are lost, the old topic stays, and a name keeps it."""
    old, new = built(counting(name="counts", by="by-word")), built(counting(name="counts", by="by-text"))
    found = reason(old, new, "app-by-word-repartition")
    assert found.change == "was renamed to app-by-text-repartition"
    assert "its unprocessed records would be lost" in found.why
    assert "The old topic stays. To keep it, give the topic its old name: Grouped.as_(" in found.why
    assert '"by-word"' in found.why


def test_step_in_front_renames_what_has_no_name():
    """A new operator changes the numbers of those after it; their old names can be given to keep the state."""
    old, new = built(counting()), built(counting(lambda stream: stream.filter(lambda _, value: value)))
    assert renames(old, new) == [
        "store KSTREAM-AGGREGATE-STATE-STORE-0000000002 was renamed to KSTREAM-AGGREGATE-STATE-STORE-0000000003",
        (
            "repartition topic app-KSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition was renamed to "
            "app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition"
        ),
    ]
    name = "KSTREAM-AGGREGATE-STATE-STORE-0000000002"
    why = reason(old, new, name).why
    assert f'Materialized.as_("{name}")' in why
    kept = built(counting(lambda stream: stream.filter(lambda _, value: value), name=name))
    assert diff_plans(old.plan(), kept.plan()).reasons == ()


def test_generated_name_of_another_operator():
    """If numbers move by as much as lies between two stores, one finds the state of the other, which is not just left behind."""

    def build(steps):
        def add(builder):
            stream = builder.stream("in", STRINGS)
            for _ in range(steps):
                stream = stream.filter(lambda _, value: value)
            grouped = stream.group_by_key()
            grouped.count().to_stream().to("one")
            grouped.reduce(max, "between")
            grouped.count().to_stream().to("other")

        return built(add)

    first = [store.name for store in build(0).plan().subtopologies[0].stores if store.name != "between"]
    old, new = (build(steps) for steps in (0, int(first[1][-10:]) - int(first[0][-10:])))
    assert renames(old, new)[0] == f"store {first[0]} was renamed to {first[1]}"
    found = reason(old, new, first[1])
    assert (found.change, found.needs_reset, found.leaves_behind) == (
        f"is now what {first[0]} was (made from in for one)",
        True,
        False,
    )


def test_several_stores_of_one_kind_are_told_apart():
    """Stores of a sub-topology are matched in order, sides of a join by their side."""

    def build(*, first, join):
        def add(builder):
            one, other = builder.stream("in", STRINGS), builder.stream("other", STRINGS)
            one.group_by_key().count(first)
            one.group_by_key().count("second")
            one.join(other, lambda a, b: a + b, PAIRS, StreamJoined.as_(join)).to("out")

        return built(add)

    assert renames(build(first="first", join="pairs"), build(first="1st", join="couples")) == [
        "store first was renamed to 1st",
        "store pairs-other-join-store was renamed to couples-other-join-store",
        "store pairs-this-join-store was renamed to couples-this-join-store",
    ]


def test_renames_in_a_moved_subtopology():
    """A sub-topology that got another number and other names at once is still recognised."""

    def new(builder):
        builder.stream("more", STRINGS).to("copy")
        counting(name="totals", by="by-text")(builder)

    assert renames(built(counting(name="counts", by="by-word")), built(new)) == [
        "store counts was renamed to totals",
        "repartition topic app-by-word-repartition was renamed to app-by-text-repartition",
    ]


def test_rename_of_a_table_that_is_its_own_changelog():
    """It is restored from its input topic, so nothing is lost."""

    def build(name):
        settings = {"topology.optimization": "all"}
        return built(lambda b: b.table("in", STRINGS, Materialized.as_(name)).to_stream().to("out"), **settings)

    found = reason(build("one"), build("two"), "one")
    assert (found.change, found.needs_reset) == ("was renamed to two", False)
    assert "two is restored from the input topic in" in found.why


def everything(builder):
    """Add an operator of each sort that needs a store or a topic, all without names."""
    left, right = builder.stream("left", STRINGS), builder.stream("right", STRINGS)
    changed = left.map(lambda key, value: (value, key), Named.as_("swap"))
    changed.group_by_key().count().suppress(LAST).to_stream().to("counts")
    changed.repartition().to("copies")
    changed.to_table().group_by(lambda key, value: (value, key)).count().to_stream().to("groups")
    table, other = builder.table("table", STRINGS), builder.table("other", STRINGS)
    table.join(other, lambda a, b: a + b, foreign_key=lambda value: value).to_stream().to("joined")
    left.left_join(right, lambda a, b: f"{a}{b}", PAIRS).to("pairs")
    left.select_key(lambda _, value: value).join(table, lambda a, b: a + b).to("looked-up")


def test_all_generated_names_are_found():
    """Each store and repartition topic of a plan without names is listed, with the user's call."""
    topology = built(everything)
    plan = topology.plan()
    stores = {store.name for part in plan.subtopologies for store in part.stores}
    topics = {topic.name.removeprefix("app-") for part in plan.subtopologies for topic in part.repartition_topics}
    found = topology.generated_names
    assert {name.name for name in found if name.resource == "store"} == stores
    assert {name.name for name in found if name.resource == "repartition topic"} == topics
    assert {name.call.place.rpartition(":")[0] for name in found} == {__file__}
    assert {name.call.function for name in found} == {
        "KGroupedStream.count", "KTable.suppress", "KStream.repartition", "KStream.to_table", "KGroupedTable.count",
        "StreamsBuilder.table", "KTable.join", "KStream.left_join", "KStream.join",
    }  # fmt: skip


def named(builder):
    """Add the same operators with names."""
    left, right = builder.stream("left", STRINGS), builder.stream("right", STRINGS)
    changed = left.map(lambda key, value: (value, key), Named.as_("swap"))
    counts = changed.group_by_key(Grouped.as_("g")).count(Materialized.as_("c"))
    counts.suppress(LAST.with_name("last")).to_stream().to("counts")
    changed.repartition(Repartitioned.as_("r")).to("copies")
    by_value = changed.to_table(Materialized.as_("t"), named="to").group_by(
        lambda key, value: (value, key), Grouped.as_("v")
    )
    by_value.count(Materialized.as_("n")).to_stream().to("groups")
    table, other = (builder.table(name, STRINGS, Materialized.as_(f"{name}-table")) for name in ("table", "other"))
    table.join(
        other, lambda a, b: a + b, Materialized.as_("fk"), foreign_key=lambda v: v, joined=TableJoined.as_("f")
    ).to_stream().to("joined")
    left.left_join(right, lambda a, b: f"{a}{b}", PAIRS, StreamJoined.as_("p")).to("pairs")


def test_names_that_are_given_are_not_generated():
    """A topology whose operators have names has nothing to name, and each option is told from the name that it gave."""
    topology = built(named)
    assert topology.generated_names == ()
    plan = topology.plan()
    options = {naming_of_store(store.name, store.kind) for part in plan.subtopologies for store in part.stores}
    assert all(naming.keeps for naming in options)
    assert {naming.option for naming in options} == {
        'Materialized.as_("c")', 'Suppressed.….with_name("last")', 'Materialized.as_("t")', 'Materialized.as_("n")',
        'Materialized.as_("table-table")', 'Materialized.as_("other-table")', 'TableJoined.as_("f")', 'Materialized.as_("fk")',
        'StreamJoined.as_("p")',
    }  # fmt: skip


def pinned(builder, names):
    """Add the operators of `everything` whose present names can be given, with those names."""
    left, right = builder.stream("left", STRINGS), builder.stream("right", STRINGS)
    changed = left.map(lambda key, value: (value, key), Named.as_("swap"))
    count, topic, table, entries = names
    changed.group_by_key().count(count)
    changed.repartition(None if topic is None else Repartitioned.as_(topic)).to("copies")
    changed.to_table(None, named=table).to_stream().to("table")
    right.group_by(lambda _, value: value, None if entries is None else Grouped.as_(entries)).count(entries)


def test_names_that_can_be_given_keep_the_state():
    """Where advice says that an option keeps the name, a topology with all of these options has the same stores and topics."""
    before = built(lambda builder: pinned(builder, [None] * 4))
    given = {}
    for name in before.generated_names:
        naming = naming_of_store(name.name, name.kind) if name.kind else naming_of_topic(name.name)
        assert naming.keeps, name
        given.setdefault(name.call.function + naming.option.partition("(")[0], []).append(naming.option.split('"')[1])
    counts = given["KGroupedStream.countMaterialized.as_"]
    names = [counts[0], *given["KStream.repartitionRepartitioned.as_"], *given["KStream.to_tableto_table"], counts[1]]
    after = built(lambda builder: pinned(builder, names))
    assert diff_plans(before.plan(), after.plan()).reasons == ()
    assert after.generated_names == ()


@pytest.mark.parametrize(
    ("name", "kind", "option"),
    [
        ("KSTREAM-JOINTHIS-0000000004-store", "window", 'StreamJoined.as_("…")'),
        ("KSTREAM-OUTERSHARED-0000000004-store", "list", 'StreamJoined.as_("…")'),
        ("KTABLE-SUPPRESS-STATE-STORE-0000000004", "buffer", 'Suppressed.….with_name("…")'),
        ("KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000004", "key-value", 'TableJoined.as_("…")'),
    ],
)
def test_names_that_no_option_gives(name, kind, option):
    """Some generated names contain what no option adds: naming the operator renames them."""
    assert naming_of_store(name, kind) == (option, False)


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True), st.sampled_from(["key-value", "window", "buffer"]))
def test_every_name_has_an_option(name, kind):
    """Whatever a store is called, there is an option that names it."""
    assert naming_of_store(name, kind).option
    assert naming_of_topic(f"{name}-repartition").option


@pytest.mark.parametrize(
    "name", ["orders-2026112500", "2026112500", "KSTREAM-orders-2026112500", "v2-KTABLE-2026112500"]
)
def test_ten_digits_in_a_given_name_are_part_of_it(name):
    """Only numbers that the DSL generates count as such: two names that differ in the user's digits are different names."""
    assert not is_generated(name)
    old, new = (built(counting(name=store, by="w")) for store in (name, name.replace("25", "26")))
    assert renames(old, new) == [f"store {name} was renamed to {name.replace('25', '26')}"]
    both = built(lambda builder: [counting(name=store, by=store)(builder) for store in (name, "a-2026112499")])
    assert "is now what" not in str(diff_plans(old.plan(), both.plan()).reasons)
