"""Tasks of Spark that outlive the last transaction: the driver does not wait for them, as it has lost them or they ran twice."""

import pytest
from tests.backfill.broker_app import App
from tests.backfill.programs import CountPerKey
from tests.backfill.test_ends import KEYS, go_on
from tests.backfill.test_unknown_outcome import END_TRANSACTION, settings
from tests.proxy import HOST, BrokerProxy, api_key, read_request
from tests.waiting import wait_until

from millrace.backfill.kafka_history import backfill_clients
from millrace.backfill.partition_write import Changes, ExecutorWrite, OldRecords, transactional_id
from millrace.backfill.rows import Row, to_arrow
from millrace.backfill.run import BackfillSpec, run_backfill
from millrace.backfill.writer import Writer
from millrace.dev._ports import free_ports
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import TaskMigratedError
from millrace.kafka.clients import open_admin
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import latest_offsets
from millrace.plan.backfill_marks import UNFINISHED_BACKFILL, is_marked
from millrace.records import NO_HEADERS, OffsetAndMetadata, TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.slow]

VALUE = (9).to_bytes(8, "big")


def commit_as_driver(app, metadata):
    """Commit the group's offsets as they are, with other metadata."""
    writer = Writer(backfill_clients(app.clients.config), f"{app.id}-backfill")
    with GroupAdmin(app.clients) as group, writer.transaction():
        offsets = {at: OffsetAndMetadata(found.offset, metadata) for at, found in group.positions().items()}
        writer.commit(app.id, offsets)
        wait_until(lambda: is_marked(group.positions(), UNFINISHED_BACKFILL) is bool(metadata), "the offsets")
    writer.close()


def test_one_that_still_writes_when_the_application_goes_on(kafka, tmp_path):
    """It had found the mark, which is gone when all its records are written: it commits none of them."""
    app = App(kafka)
    app.produce(KEYS)
    go_on(app, tmp_path)
    target, mark = TopicPartition(app.changelog, 0), f"{UNFINISHED_BACKFILL} of this test"
    end = latest_offsets(open_admin(app.clients.admin()), [target])[target]
    changes = Changes(app.settings, {target: OldRecords(0, end, end)}, versioned=frozenset(), mark=mark)
    commit_as_driver(app, mark)

    def rows():
        yield to_arrow([Row(*target, -1, "", 0, 0, None, None, NO_HEADERS, packed=-1)])
        commit_as_driver(app, "")
        app.produce(["k1", "new"])
        go_on(app, tmp_path)
        yield to_arrow([Row(*target, 0, "0_0", 1, 1, b"k1", VALUE, NO_HEADERS)])

    with pytest.raises(TaskMigratedError, match="writes nothing more"):
        list(ExecutorWrite(changes)(rows()))
    assert len(app.read(app.changelog, "read_uncommitted")) > len(app.read(app.changelog)), "it had written them"
    assert app.table(app.changelog) == dict(app.counts)


class BeforeTheLastCommit(BrokerProxy):
    """Has something done when it gets one of an application's requests to commit, and passes everything on.

    Args:
        port: where clients connect to.
    """

    def __init__(self, port):
        self._application_id, self._left, self._action = b"", 0, None
        super().__init__(port)

    def expect(self, application_id, commits, action):
        """Have something done before the last one of so many commits."""
        self._application_id, self._left, self._action = application_id.encode(), commits, action

    def pass_requests(self, client, server):
        """Pass requests on."""
        while True:
            request = read_request(client)
            if api_key(request) == END_TRANSACTION and self._application_id in request:
                self._left -= 1
                if self._left == 0:
                    self._action()
            server.sendall(request)

    def pass_answers(self, client, server):
        """Pass answers on."""
        while data := server.recv(65_536):
            client.sendall(data)


@pytest.fixture
def proxied():
    """Give a broker behind a proxy, and the latter."""
    [port] = free_ports(1, HOST)
    proxy = BeforeTheLastCommit(port)
    with EmbeddedKafka(advertised_ports=[port]) as kafka:
        [proxy.broker] = kafka.proxied_ports
        yield kafka, proxy
    proxy.close()


def test_one_that_is_killed_with_an_open_transaction(spark, proxied):
    """The driver ends it, so that the application need not wait until it times out to restore what is behind it."""
    kafka, proxy = proxied
    app = App(kafka, partitions=1)
    app.produce(KEYS)
    target = TopicPartition(app.changelog, 0)
    stale = []

    def write_and_stop():
        writer = Writer(backfill_clients(app.clients.config), transactional_id(app.id, target))
        stale.append(writer.transaction())
        writer.send(target, [(b"k1", VALUE, 1, NO_HEADERS)])
        writer.flush()

    proxy.expect(app.id, 3, write_and_stop)  # the mark, the only changelog partition, the offsets
    what = BackfillSpec(CountPerKey(app.source, app.sink), settings(app, proxy), transaction_records=1)
    assert run_backfill(spark, what).transactions == 3
    admin = open_admin(app.clients.admin())
    assert latest_offsets(admin, [target], committed_only=True) == latest_offsets(admin, [target])
    stale[0].close()
    assert app.table(app.changelog) == dict(app.counts)
