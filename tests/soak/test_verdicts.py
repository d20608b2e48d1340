"""The soak's comparison of states, and its verdict about resources, find what they are designed to find."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import replace
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest
from confluent_kafka import Producer
from rocksdict import Options, Rdict
from tests.soak.chaos import Chaos, Fault, wiped_below
from tests.soak.damage import DAMAGED, corrupt, delete
from tests.soak.model import Event, Inputs
from tests.soak.network import Network
from tests.soak.replicas import Replica
from tests.soak.resources import SLACK, Sample, Sampler, count_iterators, grown, open_iterators, picture, read_samples
from tests.soak.states import Change, Log, compare_states, different, read_changelogs, rows_of
from tests.soak.test_soak import DrivenFeeder
from tests.topologies.soak import CLOSED_STORE, PARTITIONS, WINDOW_MS, build, settings

from millrace.records import TopicPartition
from millrace.state import rocksdb
from millrace.testing import TopologyTestDriver

CHANGELOG = TopicPartition("app-first-changelog", 0)
ROWS = {0: (b"k1", b"1"), 1: (b"k2", b"2"), 4: (b"k1", b"5")}
"""The committed records of the changelog by offset; those between were aborted."""


def write_store(state_directory, offset, rows):
    """Write the store `first` of task 0_0 as an instance leaves it: its rows with timestamps, and its offset."""
    directory = state_directory / "app" / "0_0" / "rocksdb" / "first"
    directory.mkdir(parents=True)
    families = {name: Options(raw_mode=True) for name in ("keyValueWithTimestamp", "offsets")}
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    database = Rdict(str(directory), options, families)
    for key, value in rows.items():
        database.get_column_family("keyValueWithTimestamp")[key] = (7).to_bytes(8, "big") + value
    database.get_column_family("offsets")[f"{CHANGELOG.topic}-0".encode()] = offset.to_bytes(8, "big")
    database.close()
    return directory


def compared(tmp_path, first_offset=0, ran=(), **copies):
    """Return the findings for copies of the store, each with its offset and rows, if the changelog begins at an offset."""
    for name, (offset, rows) in copies.items():
        write_store(tmp_path / name, offset, rows)
    changes = [Change(offset, key, value, 7) for offset, (key, value) in ROWS.items() if offset >= first_offset]
    logs = {CHANGELOG: Log(first_offset, changes)}
    inputs = Inputs(versions={})
    found = compare_states("app", logs, {name: tmp_path / name for name in copies}, inputs, ran)
    found.problems = [problem for problem in found.problems if "model" not in problem]
    return found


def test_copies_at_different_offsets_agree_with_the_changelog(tmp_path):
    """An active task at the end of the changelog and a standby at an earlier offset are both right."""
    found = compared(tmp_path, one=(4, {b"k1": b"5", b"k2": b"2"}), two=(1, {b"k1": b"1", b"k2": b"2"}))
    assert (found.problems, found.stores, found.rows, found.behind) == ([], 2, 4, 1)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ({b"k1": b"1"}, "is missing"),
        ({b"k1": b"9", b"k2": b"2"}, "instead of"),
        ({b"k1": b"1", b"k2": b"2", b"k3": b"3"}, "is not in the changelog"),
        ({b"k1": b"5", b"k2": b"2"}, "instead of"),
    ],
    ids=["missing", "wrong", "too many", "beyond its offset"],
)
def test_standby_that_differs_is_found(tmp_path, rows, what):
    """Any difference from the changelog up to the recorded offset is a problem, even what a later record would explain."""
    found = compared(tmp_path, one=(4, {b"k1": b"5", b"k2": b"2"}), two=(1, rows))
    assert len(found.problems) == 1
    assert what in found.problems[0]
    assert "two: 0_0/first at offset 1" in found.problems[0]


def test_window_that_a_later_commit_has_deleted_is_not_missing():
    """A commit deletes expired windows at once, whereas its offset may reach the disk later; other windows must be there."""
    start = 1_700_000_000_000
    keys = [b"k" + struct.pack(">qi", start + number * WINDOW_MS, 0) for number in range(4)]
    wanted = {key: Change(offset, key, b"1", 7) for offset, key in enumerate(keys[:3])}
    rows = {keys[2]: b"1"}
    assert different(rows, wanted, CLOSED_STORE) == [(keys[1], "is missing")]
    assert different(rows, wanted, CLOSED_STORE, keys) == []
    assert different({}, wanted, CLOSED_STORE, keys) == [(keys[2], "is missing")]


def test_changelog_that_no_copy_has_reached_is_found(tmp_path):
    """After a clean close the active task's store is at the end of its changelog."""
    [problem] = compared(tmp_path, one=(1, {b"k1": b"1", b"k2": b"2"})).problems
    assert "no copy is beyond 1" in problem


LEFT_BEHIND = {"one": (4, {b"k1": b"5"}), "two": (1, {b"k1": b"1", b"k2": b"2"})}
"""A store that was restored after a truncation at offset 3, and one from before it."""


def test_copy_from_before_a_truncation_is_counted(tmp_path):
    """A copy that is at an earlier offset than its changelog's first one cannot be compared; it is counted separately."""
    found = compared(tmp_path, 3, {("one", "0_0")}, **LEFT_BEHIND)
    assert (found.problems, found.stores, found.truncated, found.behind) == ([], 1, 1, 0)


def test_copy_from_before_a_truncation_that_was_in_use_is_found(tmp_path):
    """An instance that ran a task to the end must have wiped a store that its changelog cannot complete."""
    [problem] = compared(tmp_path, 3, {("one", "0_0"), ("two", "0_0")}, **LEFT_BEHIND).problems
    assert "two ran 0_0/first at offset 1 of app-first-changelog-0, which begins at 3" in problem


def test_copy_after_a_truncation_is_still_compared(tmp_path):
    """A truncation excuses nothing in a copy that has reached its offset."""
    [problem] = compared(tmp_path, 3, one=(4, {b"k1": b"6"})).problems
    assert "instead of" in problem


def test_copy_of_an_empty_changelog_is_compared(tmp_path):
    """A changelog without records, which was never truncated, leaves no copy behind."""
    write_store(tmp_path / "one", 2**64 - 1, {})
    logs = {CHANGELOG: Log()}
    found = compare_states("app", logs, {"one": tmp_path / "one"}, Inputs(), {("one", "0_0")})
    assert (found.stores, found.truncated) == (1, 0)


AT = (
    "Store windows of task 0_1 is at offset {} of app-windows-changelog-1, which has offsets 640 to 1572 only: its state is "
    "wiped and restored from the beginning"
)
READ = "app-windows-changelog-1 no longer has offset {}: the state of task 0_1 is wiped and restored from the beginning"


@pytest.mark.parametrize("text", [AT, READ], ids=["when opened", "when read"])
@pytest.mark.parametrize(("offset", "excused"), [(0, True), (639, True), (640, False), (2000, False)])
def test_wipe_is_excused_below_a_truncation(text, offset, excused):
    """A store may be wiped if it had not reached the offset of the truncation, and for no other reason."""
    assert wiped_below("app-windows-changelog-1", 640)(f"WARNING {text.format(offset)}") is excused


@pytest.mark.parametrize(
    "truncated", ["app-windows-changelog-2", "app-totals-changelog-1", "my-app-windows-changelog-1"]
)
@pytest.mark.parametrize("text", [AT, READ], ids=["when opened", "when read"])
def test_wipe_is_not_excused_by_another_truncation(truncated, text):
    """A truncation explains nothing about other changelogs, or other partitions."""
    assert not wiped_below(truncated, 640)(f"WARNING {text.format(7)}")


@pytest.mark.parametrize(
    "line",
    [
        "WARNING State of tasks 0_1 does not match their changelogs; it is wiped and restored",
        "INFO Restoring store windows of task 0_1 from app-windows-changelog-1, offsets 7 to 640",
    ],
)
def test_other_lines_are_not_excused_by_a_truncation(line):
    """Only a wipe that names the offset is excused."""
    assert not wiped_below("app-windows-changelog-1", 640)(line)


@pytest.mark.broker
def test_truncation_is_excused_for_every_instance(kafka, tmp_path):
    """The fault truncates one changelog partition; any instance, even the spare one, may have lacked what is gone."""
    application = f"app-{uuid4().hex[:8]}"
    changelog = f"{application}-{CLOSED_STORE}-changelog"
    kafka.create_topics(changelog, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for second in range(10):
        producer.produce(changelog, b"value", b"key", 1, timestamp=1_000 * second + 1)
    producer.flush(30)
    instances = [Replica(name, application, {}, tmp_path, static=True) for name in ("one", "two", "three", "four")]
    with Network(1) as network:
        faults = Chaos(application, kafka, network, instances[:3], instances[3], lambda _: 4_000, [])
        faults._truncate(Fault(0.0, "truncate", 0, 0.0, 0.5), instances[0])()
    [first] = [log.first_offset for where, log in read_changelogs(kafka, application).items() if where.partition == 1]
    assert first == 4
    for instance in instances:
        lines = [
            f"WARNING Store windows of task 0_1 is at offset {offset} of {changelog}-{number}, which has offsets 4 to 10 only: "
            "its state is wiped and restored from the beginning\n"
            for number, offset in ((1, 3), (1, 4), (2, 3))
        ]
        instance.log_path.write_text("".join(lines))
        instance.figures()
        assert [problem.partition("WARNING ")[2] + "\n" for problem in instance.problems] == [
            line.partition("WARNING ")[2] for line in lines[1:]
        ]


@pytest.fixture(scope="module")
def logged():
    """Return inputs, and the content of the topology's stores as changelogs."""
    with TopologyTestDriver(build("app"), settings("app")) as driver:
        feeder = DrivenFeeder(driver)
        feeder.feed(200)
        rows = {
            name: [(key.encode(), stored.value) for key, stored in driver.get_key_value_store(name).all()]
            for name in ("first", "second", "orders", "versions", "matched")
        }
        rows["totals"] = [
            (windowed.key.encode() + struct.pack(">qi", windowed.window.start, 0), stored.value)
            for windowed, stored in driver.get_window_store("totals").all()
        ]
    logs = {
        TopicPartition(f"app-{name}-changelog", 0): Log(
            0, [Change(offset, key, json.dumps(value).encode(), 0) for offset, (key, value) in enumerate(each)]
        )
        for name, each in rows.items()
    }
    return feeder.inputs, logs


def test_changelogs_agree_with_the_model(logged):
    """The model computes what the stores contain at the end."""
    inputs, logs = logged
    assert len(logs) == 6
    assert compare_states("app", logs, {}, inputs).problems == []


@pytest.mark.parametrize("store", ["first", "second", "orders", "versions", "matched", "totals"])
def test_changelog_without_its_last_record_differs_from_the_model(logged, store):
    """One missing change of any of these stores is found."""
    inputs, logs = logged
    changelog = TopicPartition(f"app-{store}-changelog", 0)
    shortened = {**logs, changelog: Log(0, logs[changelog].changes[:-1])}
    [problem] = compare_states("app", shortened, {}, inputs).problems
    assert f"changelog of {store} differs from the model" in problem


def test_events_that_cannot_be_processed_are_in_no_state():
    """The model leaves out what became a dead letter."""
    inputs = Inputs(events=[Event(0, "k1", 1000, dead=True)])
    assert compare_states("app", {}, {}, inputs).problems == []


@pytest.mark.parametrize("seed", range(6))
def test_damaged_database_cannot_be_read_or_has_other_content(tmp_path, seed):
    """Whatever is damaged, a marker lies beside it, so that the comparison knows."""
    rows = {f"k{number}".encode(): b"x" * 50 for number in range(500)}
    directory = write_store(tmp_path, 4, rows)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    what = corrupt(tmp_path / "app", random.Random(seed))
    assert (tmp_path / "app" / what).read_bytes() != before[tmp_path / "app" / what]
    assert (directory / DAMAGED).exists()


def test_state_is_deleted(tmp_path):
    """One task's state disappears, or all of it."""
    write_store(tmp_path, 4, {b"k1": b"5"})
    delete(tmp_path / "app", random.Random(1))
    assert not list(tmp_path.glob("app/0_0/rocksdb/first"))


def samples(**changed):
    """Return ten minutes of samples of one process; a figure that is given is a function of the time."""
    for second in range(0, 600, 2):
        sample = Sample(1000.0 + second, "one", 17, float(second), 1, 8, 200.0 + second % 7, 300, 40, second % 3)
        yield replace(sample, **{name: figure(second) for name, figure in changed.items()})


def test_figures_that_go_up_and_down_are_flat():
    """Fluctuation alone is no problem, and every figure of the process was compared."""
    problems, notes = grown(samples(rss_mb=lambda second: 200 + 150 * (second % 60 > 30)))
    assert problems == []
    assert len(notes) == len(SLACK)


@pytest.mark.parametrize(
    ("name", "per_second"), [("rss_mb", 0.5), ("descriptors", 0.5), ("threads", 0.1), ("iterators", 0.1)]
)
def test_figure_that_only_grows_is_found(name, per_second):
    """A leak in any figure is reported with its name."""
    [problem] = grown(samples(**{name: lambda second: 50 + int(second * per_second)}))[0]
    assert problem.startswith(f"{name} of one")


def test_process_that_is_too_young_is_not_judged():
    """While it warms up a process grows, so nothing is concluded from a few seconds."""
    assert grown(sample for sample in samples() if sample.age_s < 50) == ([], [])


def test_samples_of_this_process(tmp_path, monkeypatch):
    """A process measures itself, and an iterator over a store is counted until it has ended."""
    path = tmp_path / "samples.csv"
    sampler = Sampler(path, "me")
    directory = write_store(tmp_path, 4, {b"k1": b"5", b"k2": b"5"})
    assert len(list(rows_of(directory))) == 2
    monkeypatch.setattr(rocksdb, "_until", rocksdb._until)  # restored at the end
    count_iterators()
    before = open_iterators()
    with TopologyTestDriver(build("app"), settings("app")) as driver:
        feeder = DrivenFeeder(driver)
        feeder.load_tables()
        iterator = driver.get_key_value_store("first").all()
        next(iterator)
        sampler.sample(1)
        assert open_iterators() > before
        iterator.close()
        assert open_iterators() == before
    [sample] = read_samples(path)
    assert sample.replica == "me"
    assert sample.rss_mb > 10
    assert min(sample.descriptors, sample.threads) > 0


def test_picture_has_a_line_for_each_process_and_figure():
    """The picture is an SVG with as many lines as processes times figures, besides its grids."""
    two = [*samples(), *(replace(sample, replica="two", pid=18) for sample in samples())]
    root = ET.fromstring(picture(two, "a <title>"))
    lines = [path for path in root.iter() if path.tag.endswith("path") and path.get("fill") == "none"]
    assert len(lines) == 2 * len(SLACK)
