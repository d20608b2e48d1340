"""Sum up transfers, and keep going when one of them is wrong.

A record may be wrong in two ways: it is not what the serde reads, or the program refuses it. The manifest says what happens then:
skip it, and send it to a dead-letter topic, with the reason in its headers. Nothing about that is in the program.
"""

from __future__ import annotations

from pydantic import BaseModel

from millrace import Consumed, Grouped, Materialized, Produced, Serdes, StreamsBuilder


class Transfer(BaseModel):
    """Money that arrives in an account; its key is the account."""

    cents: int


def checked(account: str, transfer: Transfer) -> int:
    """Return a transfer's amount.

    Raises:
        ValueError: it is not positive.
    """
    if transfer.cents <= 0:
        raise ValueError(f"account {account} cannot receive {transfer.cents} cents")
    return transfer.cents


def topology(builder: StreamsBuilder) -> None:
    """Build the topology."""
    text, number = Serdes.string(), Serdes.long()
    (
        builder.stream("transfers", Consumed.with_(text, Serdes.pydantic(Transfer)))
        .map_values_with_key(checked, "check")
        .group_by_key(Grouped.with_(text, number))
        .reduce(
            lambda total, cents: total + cents,
            Materialized.as_("balances").with_key_serde(text).with_value_serde(number),
        )
        .to_stream()
        .to("balances", Produced.with_(text, number))
    )
