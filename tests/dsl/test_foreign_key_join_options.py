"""Joins of tables by a foreign key as users write them: inner and left, names, partitioners, keys in the extractor."""

from __future__ import annotations

import pytest

from millrace import ForeignKeyWithKey, StreamsBuilder, TableJoined, TopologyTestDriver, ValueJoinerWithKey

SETTINGS = {
    "application.id": "app",
    "default.key.serde": "string",
    "default.value.serde": "string",
    "statestore.cache.max.bytes": 0,
}


def customer_of(order):
    """Return the customer's id in `customer:goods`, or None for an order without one."""
    return order.partition(":")[0] or None


def pipe(builder, *records):
    """Send (topic, key, value) and return keys and values of `out`."""
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        topics = {name: driver.create_input_topic(name) for name in ("orders", "customers")}
        for topic, key, value in records:
            topics[topic].pipe_input(key, value)
        return driver.create_output_topic("out").read_key_values_to_list()


def joined(operator, **options):
    """Return a builder that joins orders with customers."""
    builder = StreamsBuilder()
    orders, customers = builder.table("orders"), builder.table("customers")
    result = getattr(orders, operator)(
        customers, lambda order, name: f"{order}={name}", **{"foreign_key": customer_of, **options}
    )
    result.to_stream().to("out")
    return builder


def test_a_row_is_joined_when_either_side_changes():
    """A change of the right side reaches every row that refers to it; a deletion removes the results."""
    got = pipe(
        joined("join"),
        ("orders", "1", "a:tea"),
        ("customers", "a", "ann"),
        ("orders", "2", "a:rum"),
        ("customers", "a", None),
    )
    assert got == [("1", "a:tea=ann"), ("2", "a:rum=ann"), ("1", None), ("2", None)]


def test_a_left_join_always_answers():
    """Without a match, and without a foreign key, the right side is None."""
    got = pipe(
        joined("left_join"),
        ("orders", "1", "a:tea"),
        ("customers", "a", "ann"),
        ("orders", "2", ":rum"),
        ("customers", "a", None),
        ("orders", "1", None),
    )
    assert got == [("1", "a:tea=None"), ("1", "a:tea=ann"), ("2", ":rum=None"), ("1", "a:tea=None"), ("1", None)]


def test_a_row_that_refers_to_another_one_leaves_the_first():
    """Later changes of the first one no longer affect it."""
    got = pipe(
        joined("join"),
        ("customers", "a", "ann"),
        ("customers", "b", "bob"),
        ("orders", "1", "a:tea"),
        ("orders", "1", "b:tea"),
        ("customers", "a", "anna"),
        ("customers", "b", "bobby"),
    )
    assert got[-1] == ("1", "b:tea=bobby")
    assert ("1", "b:tea=anna") not in got
    assert [value for _, value in got if value is not None] == ["a:tea=ann", "b:tea=bob", "b:tea=bobby"]


@pytest.mark.parametrize("operator", ["join", "left_join"])
def test_the_foreign_key_may_be_found_in_the_key(operator):
    """`ForeignKeyWithKey` marks a function of key and value (KIP-1104); the joiner can get the key too."""
    builder = joined(operator, foreign_key=ForeignKeyWithKey(lambda key, order: key[0]))
    got = pipe(builder, ("customers", "a", "ann"), ("orders", "a1", "tea"))
    assert got == [("a1", "tea=ann")]

    builder = StreamsBuilder()
    with_key = ValueJoinerWithKey(lambda key, order, name: f"{key}:{name}")
    table = getattr(builder.table("orders"), operator)(builder.table("customers"), with_key, foreign_key=customer_of)
    table.to_stream().to("out")
    assert pipe(builder, ("customers", "a", "ann"), ("orders", "1", "a:tea")) == [("1", "1:ann")]


def test_a_name_reaches_nodes_topics_and_store():
    """The names are those that Kafka Streams derives from a join's name (formats §11)."""
    builder = joined("join", joined=TableJoined.as_("fk"))
    description = builder.build().describe()
    for name in (
        "fk-subscription-registration-topic",
        "fk-subscription-response-topic",
        "fk-subscription-store",
        "fk-result",
    ):
        assert name in description
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("customers").pipe_input("a", "ann")
        driver.create_input_topic("orders").pipe_input("1", "a:tea")
        assert driver.produced_topic_names() >= {
            "app-fk-subscription-registration-topic",
            "app-fk-subscription-response-topic",
            "app-fk-subscription-store-changelog",
        }


def test_partitioners_of_both_tables_are_asked():
    """Subscriptions use the right table's partitioner and the foreign key, responses the left table's and the key."""
    asked = []

    def left(topic, key, value, count):
        asked.append(("left", topic, key))
        return 0

    def right(topic, key, value, count):
        asked.append(("right", topic, key))
        return 0

    builder = joined("join", joined=TableJoined.with_(left, right).with_name("fk"))
    assert pipe(builder, ("customers", "a", "ann"), ("orders", "1", "a:tea")) == [("1", "a:tea=ann")]
    assert asked == [
        ("right", "app-fk-subscription-registration-topic", "a"),
        ("left", "app-fk-subscription-response-topic", "1"),
    ]


def test_a_kept_result_can_be_queried():
    """If it has a name, the joined table has a store."""
    builder = joined("join", materialized="joined")
    with TopologyTestDriver(builder.build(), SETTINGS) as driver:
        driver.create_input_topic("customers").pipe_input("a", "ann")
        driver.create_input_topic("orders").pipe_input("1", "a:tea")
        assert driver.get_key_value_store("joined").get("1").value == "a:tea=ann"
