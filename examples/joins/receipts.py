"""Join orders with payments, customers and countries: the three kinds of joins of a stream.

An order and its payment are two streams: they are joined if they are at most an hour apart. The customer is a table: the join
finds the latest row, after a repartition by the customer's id. Countries are few, so every instance has all of them, in a global
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from millrace import Consumed, Joined, JoinWindows, Produced, Serdes, StreamJoined, StreamsBuilder


class Order(BaseModel):
    """What somebody ordered; its key is the order's id."""

    customer: str
    country: str
    cents: int


class Payment(BaseModel):
    """How an order was paid; its key is the order's id."""

    method: str


class Receipt(BaseModel):
    """What the customer gets."""

    order: str
    customer: str
    cents: int
    method: str
    country: str


def topology(builder: StreamsBuilder, config: Mapping[str, Any]) -> None:
    """Build the topology; `config` is `spec.app.config` of the manifest."""
    text, orders, payments = Serdes.string(), Serdes.pydantic(Order), Serdes.pydantic(Payment)
    receipts = Serdes.pydantic(Receipt)
    customers = builder.table("customers", "customers", consumed=Consumed.with_(text, text))
    countries = builder.global_table("countries", "countries", consumed=Consumed.with_(text, text))
    hours = timedelta(hours=config["paidWithinHours"])
    (
        builder.stream("orders", Consumed.with_(text, orders))
        .join(
            builder.stream("payments", Consumed.with_(text, payments)),
            lambda order, payment: (order, payment.method),
            JoinWindows.of_time_difference_and_grace(hours, timedelta(minutes=10)),
            StreamJoined.with_(text, orders, payments).with_name("paid").with_store_name("paid"),
        )
        .map(lambda key, paid: (paid[0].customer, _receipt(key, *paid)))
        .join(
            customers,
            lambda receipt, name: receipt.model_copy(update={"customer": name}),
            joined=Joined.with_(text, receipts, text, name="customer"),
        )
        .left_join(
            countries,
            lambda receipt, name: receipt.model_copy(update={"country": name or receipt.country}),
            key_selector=lambda _, receipt: receipt.country,
        )
        .to("receipts", Produced.with_(text, receipts))
    )


def _receipt(key: str, order: Order, method: str) -> Receipt:
    return Receipt(order=key, customer=order.customer, cents=order.cents, method=method, country=order.country)
