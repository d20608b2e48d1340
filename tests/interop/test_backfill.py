"""Spark computes the history, and a program in either language goes on from it as if it had processed everything itself."""

from dataclasses import dataclass

import pytest
from tests.interop.test_takeover import (
    LINES,
    _check_every_count_appears_once,
    _check_partition_times,
    _check_results,
    _run_to_end,
)
from tests.interop.word_count import topology
from tests.waiting import wait_until

from millrace.backfill.collector import Outputs
from millrace.backfill.run import BackfillSpec, run_backfill

pytestmark = [pytest.mark.java, pytest.mark.broker, pytest.mark.slow]


@dataclass
class WordCountTopology:
    """Builds the word count, in the executors too."""

    source: str
    sink: str
    settings: dict

    def __call__(self):
        return topology(self.source, self.sink, self.settings)


IN_ONE, IN_SEVERAL = 10_000_000, 10 * LINES


@pytest.mark.parametrize(
    ("language", "transaction_records"),
    [
        pytest.param("java", IN_ONE, id="java-one-transaction", marks=pytest.mark.thorough),
        pytest.param("java", IN_SEVERAL, id="java-several-transactions"),
        pytest.param("python", IN_ONE, id="python-one-transaction", marks=pytest.mark.thorough),
        pytest.param("python", IN_SEVERAL, id="python-several-transactions", marks=pytest.mark.thorough),
    ],
)
def test_a_program_goes_on_from_a_backfill(word_count, spark, language, transaction_records):
    """The counts that follow the backfilled ones are exact, in stores, changelogs and outputs, window by window."""
    settings = {"processing.guarantee": "exactly_once_v2", "statestore.cache.max.bytes": "0"}
    application = word_count(**settings)
    application.produce(LINES, seed=1)
    config = {
        "application.id": application.application_id,
        "bootstrap.servers": application.kafka.bootstrap_servers,
        "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
        "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
        **settings,
    }
    program = WordCountTopology(application.input, application.output, config)

    result = run_backfill(
        spark, BackfillSpec(program, config, outputs=Outputs.ALL, transaction_records=transaction_records)
    )

    assert result.processed == LINES + 5 * LINES
    assert {name: found.records for name, found in result.stores.items()} == {
        "counts": len(application.words),
        "windowed-counts": len(application.windowed),
    }
    # The coordinator answers that the transaction is committed before the group's offsets are there.
    wait_until(lambda: application.progress() == LINES, "the offsets", 60.0)
    application.produce(LINES, seed=2)
    app = application.start(language)
    _run_to_end(application, app)
    _check_results(application)
    _check_partition_times(application)
    _check_every_count_appears_once(application)
