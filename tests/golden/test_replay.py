"""Every golden case gives the same records, stores and dropped records as Kafka Streams, operation by operation."""

from __future__ import annotations

import dataclasses

import pytest
from tests.golden.cases import CASES, load
from tests.golden.replay import replay
from tests.topologies.by_name import load_topologies

from millrace.topology import ProcessorWrapper


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir()))
def test_case_gives_what_kafka_streams_wrote(name):
    """Replaying the case's input gives its expected records and state."""
    problems = replay(load(CASES / name), load_topologies())
    assert not problems, "\n".join(problems[:5])


class Around:
    """A processor that delegates everything to another."""

    def __init__(self, inner):
        self.init, self.process, self.close = inner.init, inner.process, inner.close


class WrapAll(ProcessorWrapper):
    """Puts a processor around every node."""

    def wrap_processor_supplier(self, name, supplier):
        return lambda: Around(supplier())

    def wrap_fixed_key_processor_supplier(self, name, supplier):
        return lambda: Around(supplier())


WRAPPED = (
    "aggregate_null__cache_deferred",
    "cogroup_windowed",
    "dsl_process_values",
    "emit_session",
    "papi_punct",
    "split_branch",
    "ss_outer__grid",
    "stream_global_left",
    "stream_table_versioned",
    "suppress_session",
    "tt_outer__sync",
    "win_sliding__cache_deferred",
)


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_operators_give_what_kafka_streams_wrote(name):
    """With a wrapper (KIP-1112), operators are processors of records, with the same results."""
    case = load(CASES / name)
    wrapped = dataclasses.replace(case, config={**case.config, "processor.wrapper.class": WrapAll})
    problems = replay(wrapped, load_topologies())
    assert not problems, "\n".join(problems[:5])
