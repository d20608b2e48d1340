"""An application changes its language half-way and keeps its id: only topics, changelogs and offsets are handed over."""

import base64
import struct
from collections import Counter, defaultdict

import pytest
from tests.waiting import wait_until

from millrace.config import StreamsConfig
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.group_admin import GroupAdmin
from millrace.records import Windowed
from millrace.serdes import Serdes

pytestmark = [pytest.mark.java, pytest.mark.broker, pytest.mark.slow]

LINES = 4_000
WINDOW_MS = 10_000
STRING, LONG = Serdes.string(), Serdes.long()
WINDOWED = Serdes.time_windowed(STRING, WINDOW_MS)
WINDOWED_CHANGELOG = Serdes.time_windowed(STRING, WINDOW_MS, for_changelog=True)


def _latest(records, key_serde):
    """The last value per key, and the partitions in which each key was seen."""
    values, partitions = {}, defaultdict(set)
    for record in records:
        key = key_serde.deserialize("", record.key())
        values[key] = LONG.deserialize("", record.value())
        partitions[key].add(record.partition())
    return values, partitions


def _plain_windows(values):
    return {(key.key, key.window.start) if isinstance(key, Windowed) else key: value for key, value in values.items()}


def _partition_time(metadata):
    magic, timestamp = struct.unpack_from(">bq", base64.b64decode(metadata))
    assert magic == 2
    return timestamp


def _run_to_end(application, app):
    expected = sum(application.words.values())
    tail = application.tail(application.output)

    def complete():
        values, _ = _latest(tail.read_to_end(), STRING)
        return sum(values.values()) >= expected

    wait_until(complete, "the end of the input", 120.0, meanwhile=app.check)
    wait_until(lambda: application.progress() >= application.lines, "the last commit", 120.0, meanwhile=app.check)
    app.stop()
    tail.read_to_end()
    tail.close()


def _check_results(application):
    """Counts in outputs and changelogs are exact, and every key kept its partition."""
    app_id = application.application_id
    for topic, serde, expected in [
        (application.output, STRING, application.words),
        (f"{app_id}-counts-changelog", STRING, application.words),
        (f"{application.output}-windowed", WINDOWED, application.windowed),
        (f"{app_id}-windowed-counts-changelog", WINDOWED_CHANGELOG, application.windowed),
    ]:
        records = application.read(topic)
        values, partitions = _latest(records, serde)
        assert _plain_windows(values) == dict(expected), topic
        assert all(len(seen) == 1 for seen in partitions.values()), topic
        if topic.endswith("-changelog"):
            assert not any(record.headers() for record in records), topic


def _check_partition_times(application):
    """The committed metadata of each input partition has the largest timestamp read from it."""
    times = {
        key: _partition_time(metadata)
        for key, (_, metadata) in application.committed().items()
        if key[0] == application.input
    }
    assert times == dict(application.max_timestamps)


def _check_every_count_appears_once(application):
    """Without the cache, exactly-once output counts each word 1, 2, 3 … without gaps or repetitions."""
    seen = Counter()
    for record in application.read(application.output):
        key, value = STRING.deserialize("", record.key()), LONG.deserialize("", record.value())
        assert value == seen[key] + 1, f"{key} went from {seen[key]} to {value}"
        seen[key] = value


def _run_half_way(application, language):
    """Start a program, stop it when it has committed something, and return how much input is committed."""
    before = application.progress()
    app = application.start(language).wait_running()
    wait_until(lambda: application.progress() > before, "a commit", 120.0, meanwhile=app.check)
    app.stop()
    return application.progress()


@pytest.mark.thorough
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
@pytest.mark.parametrize(
    ("first", "second"), [("java", "java"), ("java", "python"), ("python", "java"), ("python", "python")]
)
def test_another_program_takes_over(word_count, first, second, guarantee):
    """The first program is stopped half-way, and the second continues with an empty disk: all counts are exact."""
    cache = "0" if guarantee == "exactly_once_v2" else "10485760"
    application = word_count(**{"processing.guarantee": guarantee, "statestore.cache.max.bytes": cache})
    application.produce(LINES, seed=1)
    handed_over, topics = _run_half_way(application, first), application.topics()
    assert 0 < handed_over <= LINES
    application.produce(LINES, seed=2)

    app = application.start(second)
    _run_to_end(application, app)

    assert application.progress() >= 2 * LINES
    assert application.topics() == topics
    _check_results(application)
    _check_partition_times(application)
    if guarantee == "exactly_once_v2":
        _check_every_count_appears_once(application)


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param("java", "python", marks=pytest.mark.thorough), ("python", "java")]
)
def test_another_program_takes_over_from_one_that_was_killed(word_count, first, second):
    """A program dies during a transaction; the other waits for its abort and repeats exactly what was lost.

    Then this one is stopped half-way, and the first one continues with an empty disk: all counts are exact.
    """
    application = word_count(
        **{
            "processing.guarantee": "exactly_once_v2",
            "statestore.cache.max.bytes": "0",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1500",
        }
    )
    application.produce(LINES, seed=1)
    app = application.start(first).wait_running()
    wait_until(lambda: application.progress() > 0, "the first commit", 120.0, meanwhile=app.check)
    app.kill()
    application.produce(LINES, seed=2)
    handed_over, topics = _run_half_way(application, second), application.topics()
    assert 0 < handed_over <= 2 * LINES
    application.produce(LINES, seed=3)

    app = application.start(first)
    _run_to_end(application, app)

    assert application.progress() >= 3 * LINES
    assert application.topics() == topics
    _check_results(application)
    _check_partition_times(application)
    _check_every_count_appears_once(application)


@pytest.mark.parametrize(
    ("first", "second"), [("java", "python"), pytest.param("python", "java", marks=pytest.mark.thorough)]
)
def test_both_share_a_streams_group(word_count, first, second):
    """With group.protocol=streams both describe the same topology to the brokers, share its tasks, and replace each other."""
    application = word_count(
        **{
            "group.protocol": "streams",
            "processing.guarantee": "exactly_once_v2",
            "statestore.cache.max.bytes": "0",
        }
    )
    application.produce(LINES, seed=1)
    one = application.start(first).wait_running()
    two = application.start(second).wait_running()
    with GroupAdmin(
        ClientSettings(
            StreamsConfig.of(
                {"application.id": application.application_id, "bootstrap.servers": application.kafka.bootstrap_servers}
            ),
            "admin",
        )
    ) as admin:
        wait_until(
            lambda: (found := admin.describe()).state == "Stable" and len(found.members) == 2,
            lambda: f"{admin.describe()} {one.log()[-2000:]} {two.log()[-2000:]}",
            meanwhile=lambda: (one.check(), two.check()),
        )
    application.produce(LINES, seed=2)
    one.stop()

    _run_to_end(application, two)
    _check_results(application)
    _check_every_count_appears_once(application)
