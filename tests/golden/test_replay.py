"""Every golden case: the same records, stores and dropped records as Kafka Streams, operation by operation."""

from __future__ import annotations

import pytest
from tests.golden.cases import CASES, load
from tests.golden.replay import replay
from tests.golden.topologies import load_topologies


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir()))
def test_case_gives_what_kafka_streams_wrote(name):
    """Replaying the case's input gives its expected records and state."""
    problems = replay(load(CASES / name), load_topologies())
    assert not problems, "\n".join(problems[:5])
