"""What a transaction that was aborted leaves in changelogs: for the application, and for the next backfill."""

import time
from contextlib import ExitStack

import pytest
from tests.backfill.broker_app import App
from tests.backfill.programs import SessionsPerKey
from tests.backfill.test_ends import KEYS, go_on, spec

from millrace.backfill.run import BackfillSpec, Phase, run_backfill
from millrace.errors import ActiveGroupError
from millrace.kafka.clients import open_admin
from millrace.kafka.offsets import latest_offsets
from millrace.records import TopicPartition
from millrace.state.keys import SessionKey, decode_session_key

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def run_and_abort(spark, app, wanted):
    """Run a backfill that finds a member in the group when it has written everything, so that its only transaction is aborted."""
    with ExitStack() as stack:

        def join(phase, _ends):
            if phase is Phase.PUBLISHING:
                stack.callback(app.join().close)

        with pytest.raises(ActiveGroupError, match="nothing has been written"):
            run_backfill(spark, wanted, join)


@pytest.mark.thorough
def test_an_at_least_once_application_restores_nothing_of_it(spark, kafka, tmp_path):
    """It goes on from its own offsets with its own state: each record counts once."""
    app = App(kafka, guarantee="at_least_once")
    app.produce(KEYS)
    run_and_abort(spark, app, spec(app))
    parts = [TopicPartition(app.changelog, number) for number in range(app.partitions)]
    written = latest_offsets(open_admin(app.clients.admin()), parts)  # the records may be compacted already
    assert sum(written.values()) >= len(app.counts)
    assert app.table(app.changelog) == {}
    go_on(app, tmp_path)


def sessions(app, isolation):
    """Return the sessions that a reader of the changelog finds."""
    last = {record.key(): record.value() for record in app.read(f"{app.id}-sessions-changelog", isolation)}
    return {decode_session_key(key) for key, value in last.items() if value is not None}


def test_the_next_backfill_deletes_it_for_readers_of_every_kind(spark, kafka):
    """A session that has become longer is in the changelog once, whether readers see aborted records and tombstones or not."""
    app = App(kafka, partitions=1)
    wanted = BackfillSpec(SessionsPerKey(app.source), app.settings)
    first = int(time.time() * 1000) - 600_000  # sessions of long ago are deleted by retention
    app.produce(["a", "b"], first)
    run_backfill(spark, wanted)
    app.produce(["a"], first + 60_000)
    run_and_abort(
        spark, app, wanted
    )  # what it leaves has a longer session, and tombstones for that of the first result
    end = first + 90_000
    app.produce(["a"], end)
    run_backfill(spark, wanted)
    expected = {SessionKey(b"a", first, end), SessionKey(b"b", first + 1_000, first + 1_000)}
    assert sessions(app, "read_committed") == sessions(app, "read_uncommitted") == expected
