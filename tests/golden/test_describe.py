"""Every golden topology: the same description and the same internal topics as Kafka Streams."""

from __future__ import annotations

import pytest
from tests.golden.describe import DESCRIPTIONS, compare, names
from tests.golden.topologies import load_topologies


@pytest.mark.parametrize("name", names(DESCRIPTIONS))
def test_topology_is_described_as_by_kafka_streams(name):
    """The text of `describe()`, the internal topics and their settings, and the co-partitioned groups are Java's."""
    problems = compare(DESCRIPTIONS, name, load_topologies()[name])
    assert not problems, "\n".join(problems)
