"""Every golden topology has the same description and the same internal topics as in Kafka Streams."""

from __future__ import annotations

import pytest
from tests.golden.describe import DESCRIPTIONS, compare, names
from tests.topologies.by_name import load_topologies


@pytest.mark.parametrize("name", names(DESCRIPTIONS))
def test_topology_is_described_as_by_kafka_streams(name):
    """The text of `describe()`, the internal topics with their settings, and the co-partitioned groups match Java's."""
    problems = compare(DESCRIPTIONS, name, load_topologies()[name])
    assert not problems, "\n".join(problems)
