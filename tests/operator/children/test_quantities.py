"""Quantities in the API server's notation."""

import pytest

from millrace_operator.children import canonical_quantity


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


def test_what_is_no_quantity_is_refused():
    """A text that is no quantity is named in the error."""
    with pytest.raises(ValueError, match="'much' is not a quantity"):
        canonical_quantity("much")
