"""Revenue per shop, from orders in Avro with a schema registry.

A serde without a registry uses the application's, which the manifest names: the topology can be planned without one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from millrace import Consumed, Grouped, Materialized, Produced, Serdes, StreamsBuilder
from millrace.serdes.schema_registry import AvroSerde


@dataclass(frozen=True, slots=True)
class Order:
    """An order; its key is the order's id."""

    shop: str
    cents: int


SCHEMA = (Path(__file__).parent / "order.avsc").read_text()
ORDERS: AvroSerde[Order] = AvroSerde(None, SCHEMA, to_dict=asdict, from_dict=lambda fields: Order(**fields))
"""Its registry is the application's, which it contacts when the first record needs it."""


def topology(builder: StreamsBuilder) -> None:
    """Build the topology."""
    text, number = Serdes.string(), Serdes.long()
    (
        builder.stream("orders", Consumed.with_(text, ORDERS))
        .group_by(lambda _, order: order.shop, Grouped.with_(text, ORDERS))
        .aggregate(
            lambda: 0,
            lambda _, order, total: total + order.cents,
            Materialized.as_("revenue").with_key_serde(text).with_value_serde(number),
        )
        .to_stream()
        .to("revenue", Produced.with_(text, number))
    )
