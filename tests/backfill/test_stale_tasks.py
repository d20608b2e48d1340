"""Tasks of Spark that outlive the last transaction: the driver does not wait for them, as it has lost them or they ran twice."""

from dataclasses import replace

import pytest
from tests.backfill.broker_app import App
from tests.backfill.test_ends import DEADLINE_S, KEYS, go_on, spec
from tests.waiting import wait_until

from millrace.backfill.kafka_history import backfill_clients
from millrace.backfill.partition_write import Changes, ExecutorWrite, OldRecords, transactional_id
from millrace.backfill.rows import Row, to_arrow
from millrace.backfill.run import run_backfill
from millrace.backfill.writer import Writer
from millrace.errors import TaskMigratedError
from millrace.kafka.clients import open_admin
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.offsets import latest_offsets
from millrace.kafka.resetter import Resetter
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


def mark_with_another_topic(app):
    """Mark the group's offsets as a backfill does whose application has read another topic too; return what it gave executors."""
    other, mark = f"{app.id}.other", f"{UNFINISHED_BACKFILL} of this test"
    app.kafka.create_topics(other)
    marked = {TopicPartition(other, 0), *(TopicPartition(app.source, number) for number in range(app.partitions))}
    writer = Writer(backfill_clients(app.clients.config), f"{app.id}-backfill")
    with GroupAdmin(app.clients) as group:
        with writer.transaction():
            writer.commit(app.id, {at: OffsetAndMetadata(0, mark) for at in marked})
        wait_until(lambda: is_marked(group.positions(), mark), "the mark", DEADLINE_S)
    writer.close()
    return Changes(app.settings, {}, frozenset(), mark, marked)


def write_one(changes, target):
    """Write a record to a partition, as one of these executors."""
    rows = [Row(*target, 0, "0_0", 1, 1, b"k1", VALUE, NO_HEADERS)]
    return list(ExecutorWrite(changes)(iter([to_arrow(rows)])))


def test_one_of_a_backfill_that_has_read_another_topic_too(spark, kafka):
    """It finds its mark nowhere: the later backfill takes it from where the application no longer reads, too."""
    app = App(kafka)
    app.produce(KEYS)
    earlier = mark_with_another_topic(app)
    run_backfill(spark, spec(app))
    wait_until(lambda: sum(app.committed().values()) == len(KEYS), "the offsets", DEADLINE_S)
    with GroupAdmin(app.clients) as group:
        assert not is_marked(group.positions(), UNFINISHED_BACKFILL)
    with pytest.raises(TaskMigratedError, match="writes nothing more"):
        write_one(replace(earlier, marked=frozenset()), TopicPartition(app.changelog, 0))
    assert app.table(app.changelog) == dict(app.counts)


def test_one_of_an_application_that_was_reset(kafka):
    """It writes nothing, although the reset leaves the mark in a topic that the application no longer reads."""
    app = App(kafka)
    app.produce(KEYS)
    changes, target = mark_with_another_topic(app), TopicPartition(app.sink, 0)
    assert len(write_one(changes, target)) == 1
    with Resetter(app.clients.config) as resetter:
        resetter.execute(resetter.plan(app.topology().build(app.clients.config).plan()))
    with pytest.raises(TaskMigratedError, match=r"was reset.*writes nothing more"):
        write_one(changes, target)
    assert len(app.read(app.sink)) == 1


def test_one_that_begins_while_a_later_backfill_writes(kafka):
    """It does not fence the executor that writes its partition now."""
    app = App(kafka)
    target, clients = TopicPartition(app.sink, 0), backfill_clients(app.clients.config)
    driver = Writer(clients, f"{app.id}-backfill")
    with driver.transaction():
        driver.commit(app.id, {TopicPartition(app.source, 0): OffsetAndMetadata(0, f"{UNFINISHED_BACKFILL} later")})
    driver.close()
    with GroupAdmin(app.clients) as group:
        wait_until(lambda: is_marked(group.positions(), UNFINISHED_BACKFILL), "the mark", DEADLINE_S)
    writer = Writer(clients, transactional_id(app.id, target))
    earlier = Changes(app.settings, {}, versioned=frozenset(), mark=f"{UNFINISHED_BACKFILL} earlier")
    marker = to_arrow([Row(*target, -1, "", 0, 0, None, None, NO_HEADERS, packed=-1)])
    with writer.transaction():
        writer.send(target, [(b"k1", VALUE, 1, NO_HEADERS)])
        with pytest.raises(TaskMigratedError, match="writes nothing more"):
            list(ExecutorWrite(earlier)(iter([marker])))
        writer.commit(app.id, {})
    writer.close()
    assert [record.key() for record in app.read(app.sink)] == [b"k1"]
