"""A foreign-key join on a real broker: two tables with different partition counts, and an instance that is replaced."""

from __future__ import annotations

import random
import secrets

import pytest
from confluent_kafka import Producer
from tests.instance.support import read_all, running, settings
from tests.waiting import PATIENCE_S, wait_until

from millrace.dsl import StreamsBuilder, TableJoined

pytestmark = pytest.mark.broker


def customer_of(order):
    """Return the customer's id from `customer:goods`."""
    return order.partition(":")[0] or None


def orders_with_customers(orders, customers, sink):
    """Return the topology."""
    builder = StreamsBuilder()
    builder.table(orders, "orders").left_join(
        builder.table(customers, "customers"),
        lambda order, name: f"{order}={name}",
        "joined",
        foreign_key=customer_of,
        joined=TableJoined.as_("fk"),
    ).to_stream().to(sink)
    return builder.build()


class Tables:
    """What was written to both tables, and what their join must be."""

    def __init__(self, kafka, orders, customers, seed):
        self.orders, self.customers = {}, {}
        self._topics = {orders: self.orders, customers: self.customers}
        self._names = orders, customers
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
            }
        )
        self._chance = random.Random(seed)

    def write(self, count):
        """Write random updates to both tables."""
        chance, (orders, customers) = self._chance, self._names
        for number in range(count):
            if chance.random() < 0.4:
                self._put(customers, f"c{chance.randrange(12)}", chance.choice([None, f"name{number}"]))
            else:
                value = chance.choice([None, f"c{chance.randrange(15)}:{number}", f":{number}"])
                self._put(orders, f"o{chance.randrange(40)}", value)
        assert self._producer.flush(PATIENCE_S) == 0

    def _put(self, topic, key, value):
        self._topics[topic][key] = value
        self._producer.produce(topic, None if value is None else value.encode(), key.encode())

    def joined(self):
        """Return the expected join."""
        return {
            key: f"{order}={self.customers.get(customer_of(order))}"
            for key, order in self.orders.items()
            if order is not None
        }


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_join_follows_both_tables_and_survives_a_restart(kafka, topic_factory, tmp_path, guarantee):
    """In the end the output is the join of both tables, even if another instance continues without the first one's state."""
    orders, customers = topic_factory("orders", partitions=3), topic_factory("customers", partitions=2)
    sink = topic_factory("out", partitions=2)
    tables = Tables(kafka, orders, customers, seed=7)
    application_id = f"app-{secrets.token_hex(4)}"

    def config(number):
        serdes = {"default.key.serde": "string", "default.value.serde": "string"}
        return {
            **settings(kafka, application_id, tmp_path / str(number), processing_guarantee=guarantee),
            **serdes,
            # Within the record cache a customer may appear and disappear between two commits: then nobody is notified, not even
            # an order that was joined in between. Kafka Streams does the same.
            "statestore.cache.max.bytes": 0,
        }

    def found():
        latest = {key.decode(): value for key, value, _ in read_all(kafka, sink, partitions=2)}
        return {key: value.decode() for key, value in latest.items() if value is not None}

    for number in range(2):
        tables.write(400)
        with running(orders_with_customers(orders, customers, sink), config(number)):
            tables.write(400)
            wait_until(lambda: found() == tables.joined(), lambda: f"{found()} is not {tables.joined()}")
