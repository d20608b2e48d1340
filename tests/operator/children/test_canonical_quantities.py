"""Quantities in the API server's notation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from millrace_operator.children.canonical_form import canonical_quantity


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("100Gi", "100Gi"),
        ("0.5", "500m"),
        (0.25, "250m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("2000M", "2G"),
        ("1e3", "1e3"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("0.3Ki", "307200m"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("0", "0"),
        (2, "2"),
    ],
)
def test_quantities_are_written_as_the_server_keeps_them(written, kept):
    """A quantity is given in its shortest form without a fraction."""
    assert canonical_quantity(written) == kept


NUMBERS = st.decimals(0, 10**9, places=3, allow_nan=False).map(lambda number: f"{number:f}") | st.integers(
    0, 10**9
).map(str)
SUFFIXES = st.sampled_from(("", "Ki", "Mi", "Gi", "m", "k", "M", "G", "u"))


@given(NUMBERS, SUFFIXES)
def test_the_amount_stays_the_same(number, suffix):
    """Another parser of quantities reads the same amount; the text has no fraction and is already canonical."""
    kept = canonical_quantity(number + suffix)
    assert parse_quantity(kept) == parse_quantity(number + suffix)
    assert "." not in kept
    assert canonical_quantity(kept) == kept


def test_what_is_no_quantity_is_refused():
    """Text that is not a quantity is named in the error."""
    with pytest.raises(ValueError, match="'much' is not a quantity"):
        canonical_quantity("much")
