"""Join products with their brands: two tables, where a row of one refers to a row of the other.

`products` has the brand's id in its values, `brands` has it as its key. The join is kept up to date from both sides: if a brand
is renamed, all its products change. It sends what it needs to the brands' partitions through topics of its own.
"""

from __future__ import annotations

from pydantic import BaseModel

from millrace import Consumed, Materialized, Produced, Serdes, StreamsBuilder, TableJoined


class Product(BaseModel):
    """A product; its key is the product's id."""

    name: str
    brand: str
    """The brand's id."""


class Offer(BaseModel):
    """A product with its brand's name."""

    product: str
    brand: str


def topology(builder: StreamsBuilder) -> None:
    """Build the topology."""
    text, offers = Serdes.string(), Serdes.pydantic(Offer)
    products = builder.table("products", "products", consumed=Consumed.with_(text, Serdes.pydantic(Product)))
    brands = builder.table("brands", "brands", consumed=Consumed.with_(text, text))
    (
        products.join(
            brands,
            lambda product, brand: Offer(product=product.name, brand=brand),
            Materialized.as_("offers").with_key_serde(text).with_value_serde(offers),
            foreign_key=lambda product: product.brand,
            joined=TableJoined.as_("offers"),
        )
        .to_stream()
        .to("offers", Produced.with_(text, offers))
    )
