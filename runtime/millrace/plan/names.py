"""Finds, from a name, the DSL option that names a store or repartition topic (formats §11).

Generated names have a number, which counts the operators before them. Most can be given unchanged by an option, which keeps
the state and makes the name independent of the number. Others contain more than the option's text: naming their operator
renames them.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NUMBER = "[0-9]{10}"
_GENERATED = re.compile(rf"(STATE-STORE-|\b(?:KSTREAM|KTABLE|COGROUPKSTREAM)(?:-[A-Z]+)+-){_NUMBER}(?![0-9])")
_SIDES = "(?:(?:outer-)?(?:this|other)|(?:left|outer)-shared)"


class Naming(NamedTuple):
    """The option that names a store or topic."""

    option: str
    """As code: `Materialized.as_("counts")`, or with `…` as the name if no text results in the present name."""
    keeps: bool
    """Whether it results in the present name."""


_STORES: Final = (
    (rf"KSTREAM-(?:JOIN|OUTER)(?:THIS|OTHER|SHARED)-{_NUMBER}-store", 'StreamJoined.as_("…")'),
    (rf"KTABLE-SUPPRESS-STATE-STORE-{_NUMBER}", 'Suppressed.….with_name("…")'),
    (rf"KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-{_NUMBER}", 'TableJoined.as_("…")'),
    (rf"(.+?)-{_SIDES}-join-store", 'StreamJoined.as_("{}")'),
    (r"(.+)-subscription-store", 'TableJoined.as_("{}")'),
    (r"(.+)-Buffer", 'Joined.as_("{}")'),
    (r"(.+)", 'Materialized.as_("{}")'),
)
_TOPICS: Final = (
    (rf"KTABLE-FK-JOIN-SUBSCRIPTION-(?:REGISTRATION|RESPONSE)-{_NUMBER}-topic", 'TableJoined.as_("…")'),
    (r"(.+)-subscription-(?:registration|response)-topic", 'TableJoined.as_("{}")'),
    (rf"(KSTREAM-REPARTITION-{_NUMBER})-repartition", 'Repartitioned.as_("{}")'),
    (rf"(KSTREAM-TOTABLE-{_NUMBER})-repartition", 'to_table(named="{}")'),
    (rf"(.+-STATE-STORE-{_NUMBER})-repartition", 'Grouped.as_("{}")'),
    (rf"KSTREAM-.+-{_NUMBER}-repartition", 'Joined.as_("…"), or StreamJoined.….with_name("…") for two streams'),
    (r"(.+)-repartition", 'Grouped.as_("{0}"), Joined.as_("{0}") or Repartitioned.as_("{0}")'),
)


def naming_of_store(name: str, kind: str) -> Naming:
    """Return the option that names a store.

    >>> naming_of_store("KSTREAM-AGGREGATE-STATE-STORE-0000000003", "key-value")
    Naming(option='Materialized.as_("KSTREAM-AGGREGATE-STATE-STORE-0000000003")', keeps=True)
    >>> naming_of_store("KSTREAM-JOINTHIS-0000000004-store", "window")
    Naming(option='StreamJoined.as_("…")', keeps=False)
    """
    if kind == "buffer" and (base := name.removesuffix("-store")) != name:
        return Naming(f'Suppressed.….with_name("{base}")', keeps=True)
    return _naming(name, _STORES)


def naming_of_topic(name: str) -> Naming:
    """Return the option that names a repartition topic, given without the application id.

    >>> naming_of_topic("by-word-repartition").option
    'Grouped.as_("by-word"), Joined.as_("by-word") or Repartitioned.as_("by-word")'
    """
    return _naming(name, _TOPICS)


def _naming(name: str, table: tuple[tuple[str, str], ...]) -> Naming:
    for pattern, option in table:
        found = re.fullmatch(pattern, name)
        if found:
            return Naming(option.format(*found.groups()), keeps=bool(found.groups()))
    return Naming("", keeps=False)


def without_numbers(name: str) -> str:
    """Return a name without the numbers that the DSL generates; digits in names given by the user stay.

    >>> without_numbers("KSTREAM-JOINTHIS-0000000004-store"), without_numbers("orders-2026112500")
    ('KSTREAM-JOINTHIS-#-store', 'orders-2026112500')
    """
    return _GENERATED.sub(r"\1#", name)


def is_generated(name: str) -> bool:
    """Whether a name has a number that the DSL generates."""
    return _GENERATED.search(name) is not None


def stem(name: str) -> str:
    """Return the part that two names of the same resource share: the ends that options add, or all but numbers.

    >>> stem("orders-this-join-store"), stem("KSTREAM-JOINTHIS-0000000004-store"), stem("counts")
    ('-this-join-store', 'KSTREAM-JOINTHIS-#-store', '')
    """
    if is_generated(name):
        return without_numbers(name)
    found = re.search(
        rf"-{_SIDES}-join-store$|-subscription-(?:store|registration-topic|response-topic)$|-Buffer$|"
        r"(?:-left|-right)?-repartition$",
        name,
    )
    return found[0] if found else ""
