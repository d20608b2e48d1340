"""What a transaction that was aborted leaves in changelogs: for the application, and for the next backfill."""

from contextlib import ExitStack

import pytest
from tests.backfill.broker_app import App
from tests.backfill.test_ends import KEYS, go_on, spec

from millrace.backfill.run import Phase, run_backfill
from millrace.errors import ActiveGroupError

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def run_and_abort(spark, app, wanted):
    """Run a backfill that finds a member in the group when it has written everything, so that its only transaction is aborted."""
    with ExitStack() as stack:

        def join(phase, _ends):
            if phase is Phase.PUBLISHING:
                stack.callback(app.join().close)

        with pytest.raises(ActiveGroupError, match="nothing has been written"):
            run_backfill(spark, wanted, join)


def test_an_at_least_once_application_restores_nothing_of_it(spark, kafka, tmp_path):
    """It goes on from its own offsets with its own state: each record counts once."""
    app = App(kafka, guarantee="at_least_once")
    app.produce(KEYS)
    run_and_abort(spark, app, spec(app))
    assert len(app.read(app.changelog, "read_uncommitted")) == len(app.counts)
    assert app.table(app.changelog) == {}
    go_on(app, tmp_path)
