"""The golden topologies over history: Spark computes what the engine does."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from tests.backfill.support import SETTINGS, Engine, Partitions, differences, result_of, run_without_spark
from tests.golden.cases import CASES, Case, load
from tests.golden.replay import build
from tests.topologies.by_name import TOPOLOGIES

from millrace.backfill.collector import Outputs
from millrace.backfill.history import Backfill
from millrace.backfill.job import compute
from millrace.backfill.stages import plan_stages
from millrace.config import StreamsConfig
from millrace.errors import StreamsError
from millrace.plan.partition_counts import resolve_partition_counts
from millrace.plan.topology_plan import external_source_topics

FAILING = {
    "deser_fail": "a record that cannot be read",
    "suppress_window_shutdown": "a suppression buffer that is full",
    "suppress_window_defaultserde": "a windowed key that the default serde cannot write",
    "ts_negative_fail": "a negative timestamp",
}
"""Cases in which the engine fails, and so must the backfill."""
OUTPUTS = {
    "fk_inner": (
        "last",
        "when responses reach the left side decides which results are overtaken, and when a key is deleted; no other last result",
    ),
    "opt_reparts_join_none": (
        "none",
        "a task reads every record twice, from two repartition topics: which comes first depends on the order of arrival",
    ),
}
"""Topologies of which the input does not determine all outputs, nor in the engine: what is compared and why; stores always."""
BATCH = 12
SHUFFLING = frozenset(
    [
        "count_keychange",
        "count_named",
        "dsl_process_dedup",
        "fk_inner",
        "ktable_group_count",
        "ktable_group_reduce",
        "opt_reparts_join_none",
        "papi_interleaved",
        "repartition_ops",
        "ss_inner_rekey",
        "stream_table_left_rekey",
        "to_table_rekey",
        "two_groupbys_all",
        "two_groupbys_none",
        "versioned_table_ops",
        "win_keychange",
        "wordcount",
    ]
)
"""Topologies whose tasks send records to each other; Spark runs the others' tasks as the tests without it do."""
ALWAYS = frozenset(
    [
        "count_keychange",
        "dsl_process_dedup",
        "fk_inner",
        "ktable_group_reduce",
        "opt_reparts_join_none",
        "papi_interleaved",
        "two_groupbys_all",
        "win_keychange",
    ]
)
"""Those of them of which each has something that the others do not have."""


def load_cases() -> dict[str, Case]:
    """Return one recording of each topology, the first."""
    found: dict[str, Case] = {}
    for folder in sorted(CASES.iterdir()):
        case = load(folder)
        found.setdefault(case.topology, case)
    return found


GOLDEN = load_cases()
COMPARED = sorted(GOLDEN.keys() - FAILING.keys())


def topology(name: str, config: Mapping[str, Any]) -> Any:
    """Build a topology; a backfill's executors call it too."""
    return build(TOPOLOGIES[name], config)


def backfill_of(name: str, partitions: int) -> Backfill:
    """Return the backfill of a case's input, with this many partitions of each topic."""
    case = GOLDEN[name]
    config = {**SETTINGS, **case.config, "statestore.cache.max.bytes": "0"}
    inputs = [
        (op.topic, op.key, op.value, op.timestamp, op.headers) for op in case.ops if op.kind in ("pipe", "enqueue")
    ]
    built = topology(name, config)
    counts = dict.fromkeys(topics_of(built, config), partitions)
    counts |= dict.fromkeys((record.topic for record in case.sent if record.topic not in counts), 3)
    return Backfill(
        functools.partial(topology, name, config),
        config,
        Partitions.of(inputs, counts),
        outputs=Outputs.ALL,
        side_effects=True,
        wall_clock_punctuators=True,
    )


def compared_outputs(name: str) -> str:
    """Return which outputs of a topology are compared."""
    return OUTPUTS[name][0] if name in OUTPUTS else "all"


def topics_of(built: Any, config: Mapping[str, Any]) -> set[str]:
    """Return the topics of the user that a topology reads."""
    return set(external_source_topics(built.build(StreamsConfig.of(config)).plan()))


@pytest.mark.parametrize("partitions", [1, 3, pytest.param(7, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", COMPARED)
def test_tasks_compute_what_the_engine_does(name, partitions):
    """Outputs, changelogs, processed and dropped records are the same, record by record."""
    backfill = backfill_of(name, partitions)
    expected = Engine(backfill.topology, backfill.config, backfill.history).run()
    problems = differences(expected, run_without_spark(backfill), outputs=compared_outputs(name))
    assert not problems, "\n".join(problems[:3])


def test_which_topologies_shuffle():
    """They have several stages, or one that reads what it sends."""
    found = set()
    for name in COMPARED:
        backfill = backfill_of(name, 3)
        plan = backfill.topology().build(StreamsConfig.of(backfill.config)).plan()
        counts = resolve_partition_counts(plan, backfill.history.partition_counts())
        stages = [stage for stage in plan_stages(plan, counts) if stage.tasks]
        if len(stages) > 1 or any(stage.circular for stage in stages):
            found.add(name)
    assert found == SHUFFLING


def batches() -> Iterator[Any]:
    """Return topologies that are computed together; some of those that shuffle first."""
    for always, marks in ((True, pytest.mark.slow), (False, pytest.mark.thorough)):
        names = [name for name in COMPARED if (name in ALWAYS) is always]
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            yield pytest.param(some, id=f"{some[0]}…{some[-1]}", marks=marks)


@pytest.mark.parametrize("names", list(batches()))
def test_spark_computes_what_the_engine_does(spark, names):
    """So they are when Spark runs the tasks and shuffles what they send each other."""
    backfills = {name: backfill_of(name, 3) for name in names}
    computed = {name: compute(spark, backfill) for name, backfill in backfills.items()}
    named = [found.records().withColumn("name", F.lit(name)) for name, found in computed.items()]
    rows = reduce(DataFrame.unionByName, named).collect()  # one job for all of them
    problems = []
    for name, backfill in backfills.items():
        expected = Engine(backfill.topology, backfill.config, backfill.history).run()
        got = result_of(computed[name].plan, [row for row in rows if row.name == name])
        problems += [f"{name}: {one}" for one in differences(expected, got, outputs=compared_outputs(name))[:3]]
    assert not problems, "\n".join(problems)


def failure(backfill: Backfill) -> str:
    """Return how the engine fails, without numbers: another task of a backfill may be the first to fail."""
    with pytest.raises(StreamsError) as expected:
        Engine(backfill.topology, backfill.config, backfill.history).run()
    return re.sub(r"\d+", "#", str(expected.value).split("\n")[0])


@pytest.mark.parametrize("name", sorted(FAILING))
def test_tasks_fail_as_the_engine_does(name):
    """What makes the engine fail makes the tasks of a backfill fail, with the engine's message."""
    backfill = backfill_of(name, 3)
    with pytest.raises(StreamsError) as raised:
        run_without_spark(backfill)
    assert failure(backfill) in re.sub(r"\d+", "#", str(raised.value))


@pytest.mark.parametrize(
    "name", ["deser_fail", *(pytest.param(name, marks=pytest.mark.thorough) for name in sorted(FAILING)[1:])]
)
def test_spark_fails_as_the_engine_does(spark, name):
    """The failure of a task comes through Spark with its message."""
    backfill = backfill_of(name, 3)
    with pytest.raises(Exception, match="Error") as raised:
        compute(spark, backfill).rows.collect()
    assert failure(backfill) in re.sub(r"\d+", "#", str(raised.value))
