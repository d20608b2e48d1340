"""The orders of Java's collections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.java_collections import MutableKeyTreeSet, hash_code, hash_order


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("in1", 104364), ("polygenelubricants", 2147483648), ("\u00e9", 233), ("\U0001f600", 1772899)],
)
def test_string_hash_is_javas(text, expected):
    """Hashes are those of Java's String.hashCode, over UTF-16 units, as unsigned numbers."""
    assert hash_code(text) == expected


def test_small_sets_iterate_as_in_the_golden_descriptions():
    """Kafka Streams prints these topics in this order."""
    assert hash_order(["in1", "in2"], copied=True) == ["in2", "in1"]
    assert hash_order(["in3", "in4"], copied=True) == ["in4", "in3"]


@given(st.lists(st.text(max_size=5), max_size=40))
def test_hash_order_keeps_every_name_once(names):
    """Ordering neither loses nor adds names."""
    assert sorted(hash_order(names)) == sorted(set(names))


@given(st.lists(st.integers()))
def test_tree_set_is_sorted_while_keys_do_not_change(items):
    """With fixed keys, the set behaves like a sorted set of distinct items."""
    tree = MutableKeyTreeSet(lambda one, other: one - other)
    for item in items:
        tree.add(item)
    assert list(tree) == sorted(set(items))


def test_tree_set_keeps_what_was_inserted_before_its_key_changed():
    """An item is placed by its key at the moment of insertion, and stays there."""
    keys = {"a": 1, "b": 2, "c": 3}
    tree = MutableKeyTreeSet(lambda one, other: keys[one] - keys[other])
    tree.add("b")
    tree.add("a")
    keys["a"] = 9
    tree.add("c")
    assert list(tree) == ["a", "b", "c"]
