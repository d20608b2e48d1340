"""Every golden case: the same records, stores and dropped records as Kafka Streams, operation by operation."""

from __future__ import annotations

import importlib

import pytest
from tests.golden.cases import CASES, load
from tests.golden.replay import INFORMATIONAL, replay

TOPOLOGIES = importlib.import_module("tests.golden.papi_topologies").TOPOLOGIES
NAMES = sorted(path.name for path in CASES.iterdir() if load(path).topology in TOPOLOGIES)


@pytest.mark.parametrize("name", NAMES)
def test_case_gives_what_kafka_streams_wrote(name):
    """Replaying the case's input gives its expected records and state."""
    problems = replay(load(CASES / name), TOPOLOGIES)
    if problems and any(name.endswith(suffix) for suffix in INFORMATIONAL):
        pytest.skip(f"informational: {len(problems)} differences, first {problems[0][:120]}")
    assert not problems, "\n".join(problems[:5])
