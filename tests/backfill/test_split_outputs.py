"""Outputs that are written partition by partition: each once, however many attempts it takes."""

import os
import signal
import subprocess
from collections import Counter
from dataclasses import replace

import pytest
from tests.backfill.broker_app import App
from tests.backfill.programs import CopiedTwice
from tests.backfill.test_ends import DEADLINE_S, KEYS, command, go_on, spec, wait_for_publishing
from tests.instance.test_producer import set_largest_batch
from tests.waiting import wait_until

from millrace.backfill import publish, split_outputs
from millrace.backfill.collector import Outputs
from millrace.backfill.kafka_history import Extent, KafkaHistory, backfill_clients
from millrace.backfill.packing import Size
from millrace.backfill.preconditions import NOTHING_WRITTEN
from millrace.backfill.run import BackfillSpec, run_backfill
from millrace.backfill.split_outputs import (
    SplitOutputs,
    begun_outputs,
    check_fitting,
    figures,
)
from millrace.backfill.writer import Writer
from millrace.errors import ConfigError, ProductionError, StreamsTimeoutError
from millrace.instance.kafka_streams import KafkaStreams
from millrace.instance.states import State
from millrace.kafka.clients import open_admin
from millrace.kafka.group_admin import GroupAdmin
from millrace.kafka.internal_topics import committed_partitions
from millrace.kafka.offsets import delete_records, latest_offsets
from millrace.kafka.resetter import Resetter
from millrace.plan.backfill_marks import outputs_group
from millrace.records import OffsetAndMetadata, TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def app(kafka):
    """An application with some records."""
    app = App(kafka)
    app.produce(KEYS)
    return app


def split(app, name="history", **options):
    """Return what to do if every output is too much for one transaction."""
    return spec(app, **{"outputs": Outputs.ALL, "transaction_records": 1, "attempt_of": name, **options})


def outputs_of(app):
    """Return the values of each key in the output, in their order."""
    found = {}
    for record in app.read(app.sink):
        found.setdefault(record.key().decode(), []).append(int.from_bytes(record.value(), "big"))
    return found


def counted(keys):
    """Return what counting keys writes."""
    return {key: list(range(1, number + 1)) for key, number in Counter(keys).items()}


@pytest.fixture
def dies_before_the_offsets(monkeypatch):
    """Give a function that runs a backfill whose driver dies when all its executors have written."""

    def run(spark, what):
        def die(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(publish, "_beyond_own_records", die)
            run_backfill(spark, what)

    return run


def test_all_outputs_are_there_in_their_order(spark, app, tmp_path):
    """Each partition in a transaction of its own, between the marks and the offsets; then the application goes on."""
    result = run_backfill(spark, split(app))
    assert outputs_of(app) == counted(KEYS)
    assert app.table(app.changelog) == dict(app.counts)
    assert result.transactions == 1 + app.partitions + app.partitions + 1
    assert result.outputs == {app.sink: len(KEYS)}
    assert run_backfill(spark, split(app)).notes == ["An earlier attempt has handed over, so nothing was done again"]
    app.produce(["k1", "new"])
    go_on(app, tmp_path)
    assert outputs_of(app) == counted([*KEYS, "k1", "new"])


def test_only_a_backfill_with_a_name_may_do_so(spark, app):
    """Another attempt would not know what is written."""
    with pytest.raises(
        ConfigError, match=rf"There are {len(KEYS)} output records.*--attempt-of NAME.*nothing has been written"
    ):
        run_backfill(spark, split(app, name=None))
    assert app.read(app.changelog) == app.read(app.sink) == []


def test_a_later_attempt_writes_no_partition_again(spark, app, tmp_path, dies_before_the_offsets):
    """It computes up to where the first one did, so stores and outputs fit each other, although there are more records now.

    Where the application was in a topic that it no longer reads says nothing about the history. Another result under the same
    name is refused, as what is left would not fit what is written.
    """
    with GroupAdmin(app.clients) as group:
        group.commit({TopicPartition(app.sink, 0): 500})
    dies_before_the_offsets(spark, split(app))
    assert outputs_of(app) == counted(KEYS)
    app.produce(["k1", "new"])
    with pytest.raises(ConfigError, match="has begun to write outputs of another topology, or with other options"):
        run_backfill(spark, split(app, outputs=Outputs.LAST))
    result = run_backfill(spark, split(app))
    assert result.processed == len(KEYS)
    assert outputs_of(app) == counted(KEYS)
    wait_until(lambda: sum(app.committed().values()) == len(KEYS), "the offsets", DEADLINE_S)
    go_on(app, tmp_path)
    assert outputs_of(app) == counted([*KEYS, "k1", "new"])
    run_backfill(spark, split(app, name="again", outputs=Outputs.LAST))
    assert app.table(app.changelog) == dict(app.counts)


def test_a_later_attempt_writes_the_partitions_that_are_left(spark, kafka, tmp_path):
    """One partition takes no more than what is there; the topic's setting is corrected, and nothing is there twice."""
    app = App(kafka, partitions=2)
    keys = [*KEYS, "x" * 5_000]
    app.produce(keys)
    set_largest_batch(app.kafka, app.sink, 4_000)
    with pytest.raises(ProductionError, match=app.sink):
        run_backfill(spark, split(app))
    written = outputs_of(app)
    assert set(written) < set(counted(keys)), "a partition is left"
    set_largest_batch(app.kafka, app.sink, 100_000)
    run_backfill(spark, split(app))
    assert outputs_of(app) == counted(keys)
    go_on(app, tmp_path)


@pytest.mark.parametrize("in_one", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_later_attempt_with_other_limits(spark, app, dies_before_the_offsets, in_one):
    """That all would fit into one transaction now does not matter."""
    dies_before_the_offsets(spark, split(app))
    app.produce(["new"])
    if in_one:  # its marks are gone too, but not what it has written
        with Resetter(app.clients.config) as resetter:
            resetter.execute(resetter.plan(app.topology().build(app.clients.config).plan()))
    run_backfill(spark, split(app, transaction_records=1_000_000))
    assert outputs_of(app) == counted(KEYS)
    assert app.table(app.changelog) == Counter(KEYS)


def test_an_application_that_has_gone_on_since(spark, app, tmp_path, dies_before_the_offsets):
    """It was reset, so it could: the rest of the outputs would come from a state that is older than its own."""
    dies_before_the_offsets(spark, split(app))
    with Resetter(app.clients.config) as resetter:
        resetter.execute(resetter.plan(app.topology().build(app.clients.config).plan()))
    app.produce(["k1", "new"])
    settings = {**app.settings, "state.dir": str(tmp_path), "commit.interval.ms": "100"}
    with KafkaStreams(app.topology(), settings) as streams:
        wait_until(lambda: streams.state is State.RUNNING, "it runs", DEADLINE_S)
        wait_until(lambda: sum(app.committed().values()) >= len(KEYS) + 2, "it has read everything", DEADLINE_S)
    with pytest.raises(ConfigError, match=r"has gone on since backfill history.*Start another backfill"):
        run_backfill(spark, split(app))


def test_topics_that_have_changed_since(spark, app, dies_before_the_offsets):
    """Keys of outputs have moved: some would be written twice, and others never. Of a source topic, the ends are others."""
    dies_before_the_offsets(spark, split(app))
    app.add_partition(app.sink)
    with pytest.raises(ConfigError, match=r"something else: .*a topic of outputs has got partitions. Start another"):
        run_backfill(spark, split(app))
    app.add_partition(app.source)
    with pytest.raises(ConfigError, match=rf"{app.source}-{app.partitions} has changed since"):
        run_backfill(spark, split(app))
    assert outputs_of(app) == counted(KEYS)


def test_records_that_are_deleted_since(spark, app, dies_before_the_offsets):
    """What is left gives other outputs, which would not fit those that are written."""
    dies_before_the_offsets(spark, split(app, allow_missing_history=True))
    delete_records(open_admin(app.clients.admin()), {TopicPartition(app.source, 0): 5})
    with pytest.raises(ConfigError, match=r"something else: records of the history were deleted"):
        run_backfill(spark, split(app, allow_missing_history=True))
    assert app.table(app.changelog) == dict(app.counts)


def test_what_is_committed_but_not_there_yet_is_waited_for(app):
    """Else a partition would be written twice: brokers show the offsets of a transaction some time after its end."""
    plan = app.topology().build(app.clients.config).plan()
    target, admin = TopicPartition(app.sink, 0), open_admin(app.clients.admin())
    outputs = SplitOutputs(outputs_group(app.id, "history"), "result 1", {}, frozenset([target]))
    writer = Writer(backfill_clients(app.clients.config), f"{app.id}-backfill")
    with GroupAdmin(app.clients, timeout_s=5) as group:
        with writer.transaction():
            writer.add_offsets(outputs.group_id, outputs.writing(target, 7))
            writer.add_offsets(outputs.group_id, {TopicPartition(app.source, 0): OffsetAndMetadata(9, "result 1")})
            with pytest.raises(StreamsTimeoutError):
                outputs.written(group, target)
            with pytest.raises(StreamsTimeoutError):
                begun_outputs(group, "history", "result", committed_partitions([plan], admin))
            writer.commit(app.id, {})
        assert outputs.written(group, target) == 7
        begun = begun_outputs(group, "history", "result", [])
        assert {at: known.offset for at, known in begun.items()} == {target: 0, TopicPartition(app.source, 0): 9}
    writer.close()


def test_records_between_two_stages_that_are_deleted(spark, app, dies_before_the_offsets):
    """Topics that the application itself writes are computed and never read: retention may delete them at once."""
    between = f"{app.id}.between"
    app.kafka.create_topics(between, partitions=app.partitions, config={"retention.ms": "-1"})
    program = CopiedTwice(app.source, between, app.sink)
    what = BackfillSpec(program, app.settings, outputs=Outputs.ALL, transaction_records=1, attempt_of="history")
    dies_before_the_offsets(spark, what)
    admin = open_admin(app.clients.admin())
    parts = [TopicPartition(between, number) for number in range(app.partitions)]
    delete_records(admin, latest_offsets(admin, parts))
    run_backfill(spark, what)
    assert len(app.read(app.sink)) == len(KEYS)
    assert app.read(between) == []
    again = run_backfill(spark, replace(what, attempt_of="again"))
    assert again.notes == []
    assert (len(app.read(app.sink)), len(app.read(between))) == (2 * len(KEYS), len(KEYS))


def test_a_changelog_that_is_too_large_for_a_transaction(spark, app, monkeypatch):
    """The application is not marked for what cannot end."""
    monkeypatch.setattr(split_outputs, "_RECORDS_PER_MS", 0)
    with pytest.raises(ConfigError, match=rf"{app.changelog}-\d gets \d records, .*; nothing has been written"):
        run_backfill(spark, spec(app, transaction_records=1))
    assert app.committed() == {}


def test_what_is_committed_again_is_what_nobody_replaces():
    """An executor of an earlier attempt may just have written the other partition."""
    source, done, left = TopicPartition("in", 0), TopicPartition("out", 0), TopicPartition("out", 1)
    outputs = SplitOutputs("group", "result", {source: 5, left: 3}, frozenset([done, left]))
    first = outputs.beginning({})
    assert first == {source: OffsetAndMetadata(5, "result"), left: OffsetAndMetadata(3, "result")}
    known = {source: first[source], **outputs.writing(done, 2)}
    assert outputs.beginning({**first, **known}) == known


def test_another_distribution_is_another_result():
    """A program that makes keys up writes as many records again, but not the same ones to each partition."""
    history = KafkaHistory({}, {"in": 1}, {}, {TopicPartition("in", 0): Extent(0, 0, 5)})
    reports, sizes = [{"task": [0, 0], "processed": 5, "dropped": 0}], {"out": Size(5, 50)}
    first, second = TopicPartition("out", 0), TopicPartition("out", 1)
    found = figures(reports, history, sizes, {first: 3, second: 2})
    assert found == figures(reports, history, sizes, {second: 2, first: 3})
    assert found != figures(reports, history, sizes, {first: 2, second: 3})
    assert found != figures(reports, history, {"out": Size(5, 51)}, {first: 3, second: 2})


def test_a_partition_that_is_too_large_for_a_transaction():
    """It is refused before anything is written: all attempts would end half-way."""
    first, second = TopicPartition("out", 0), TopicPartition("out", 1)
    check_fitting({first: 60_000_000}, 600_000, NOTHING_WRITTEN)
    with pytest.raises(ConfigError, match=r"out-1 gets 60,000,001 records.*producer.transaction.timeout.ms higher"):
        check_fitting({first: 60_000_000, second: 60_000_001}, 600_000, NOTHING_WRITTEN)


@pytest.mark.thorough
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_killed_while_executors_write(spark, kafka, tmp_path, guarantee):
    """Wherever it was, the next attempt ends with every output once."""
    app = App(kafka, partitions=6, guarantee=guarantee)
    keys = [f"k{number % 100}" for number in range(1_000)]
    app.produce(keys)
    options = ("--transaction-records", "1", "--outputs", "all", "--attempt-of", "history", "--progress", "json")
    arguments, settings = command(app, tmp_path, *options)
    arguments[arguments.index("local[2]")] = "local[1]"
    admin = open_admin(app.clients.admin())
    parts = [TopicPartition(app.sink, number) for number in range(app.partitions)]
    killed = subprocess.Popen(arguments, start_new_session=True, **settings)
    try:
        wait_for_publishing(killed)
        wait_until(lambda: any(latest_offsets(admin, parts).values()), "an output", DEADLINE_S, poll_s=0.01)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
    assert not app.committed() or not sum(app.committed().values()), "it was not fast enough to end"
    app.produce(["k1", "new"])
    run_backfill(spark, split(app))
    assert outputs_of(app) == counted(keys)
    go_on(app, tmp_path)
