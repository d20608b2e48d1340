"""The soak finds the problems that it is designed to find, and a short one passes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter, defaultdict

import pytest
from rich.console import Console
from tests.soak.__main__ import parse, run
from tests.soak.chaos import _KINDS, ENDED_DENIED, ENDS_PROCESS, plan
from tests.soak.feeding import Feeder
from tests.soak.model import compare, take_what_is_allowed
from tests.soak.replica import main
from tests.soak.replicas import Replica
from tests.topologies.soak import OUTPUTS, build, settings, topic

from millrace.errors import StreamsError
from millrace.instance import KafkaStreams
from millrace.testing import TopologyTestDriver


class DrivenFeeder(Feeder):
    """Feeds the topology in this process, in place of a broker."""

    def __init__(self, driver):
        super().__init__("127.0.0.1:1", "app", 100, "seed")
        self._driver = driver

    def feed(self, events):
        """Feed this many events, 50 ms apart, and the other records that belong to them."""
        self.load_tables()
        for _ in range(events):
            self._timestamp_ms += 50
            self._feed_one()
        self.finish()

    def _send(self, name, key, value, partition=-1):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._driver.pipe_raw(topic("app", name), key.encode(), data, self._timestamp_ms)

    def _flush(self):
        pass


@pytest.fixture(scope="module")
def fed():
    """Return inputs, and the topology's outputs for them when nothing goes wrong."""
    with TopologyTestDriver(build("app"), settings("app")) as driver:
        produced = driver.record_produced()
        feeder = DrivenFeeder(driver)
        feeder.feed(400)
        outputs = defaultdict(list)
        for record in produced:
            prefix, _, name = record.topic.partition(".")
            if prefix == "app" and name in OUTPUTS:
                outputs[name].append((record.key.decode(), record.value))
    return feeder.inputs, outputs


def found(fed, exactly_once, **changed):
    """Return which topics have problems, and which kinds, if some topics' outputs are changed."""
    inputs, outputs = fed
    findings = compare(inputs, outputs | changed, exactly_once=exactly_once)
    return {
        name: {problem.split()[1].rstrip(",") for problem in problems}
        for name, each in findings.items()
        if (problems := each.problems(exactly_once=exactly_once))
    }


@pytest.mark.parametrize("exactly_once", [True, False])
def test_undisturbed_run_agrees_with_the_model(fed, exactly_once):
    """The model describes what the topology does, so nothing is found if nothing goes wrong."""
    assert {name: len(outputs) >= 10 for name, outputs in fed[1].items()} == dict.fromkeys(OUTPUTS, True)
    assert found(fed, exactly_once) == {}


@pytest.mark.parametrize("name", OUTPUTS)
def test_lost_record_is_found(fed, name):
    """One missing record in any output breaks exactly-once."""
    outputs = fed[1][name]
    if name == "matched":  # all but the last result of a key may be skipped
        outputs = list(dict(outputs).items())
    for missing in (0, len(outputs) // 2, len(outputs) - 1):
        kept = outputs[:missing] + outputs[missing + 1 :]
        assert "lost" in found(fed, True, **{name: kept})[name]


@pytest.mark.parametrize("name", OUTPUTS)
def test_repeated_record_is_found(fed, name):
    """One duplicate record in any output breaks exactly-once; at-least-once only counts it."""
    outputs = fed[1][name]
    for twice in (0, len(outputs) // 2, len(outputs) - 1):
        repeated = [*outputs[: twice + 1], outputs[twice], *outputs[twice + 1 :]]
        assert {"repeated", "wrong"} & found(fed, True, **{name: repeated})[name]
        assert found(fed, False, **{name: repeated}) == {}


@pytest.mark.parametrize(("several", "allowed"), [(True, True), (False, False)])
def test_at_least_once_may_lose_one_pair_of_several_only(fed, several, allowed):
    """A pair that is lost is a problem, unless another record with the same key and timestamp may have replaced its own."""
    inputs, outputs = fed
    rights = Counter(left for left, _ in inputs.pairs)
    lost = next(pair for pair in sorted(inputs.pairs) if (rights[pair[0]] > 1) is several)
    kept = [each for each in outputs["pairs"] if tuple(json.loads(each[1])) != lost]
    findings = compare(inputs, outputs | {"pairs": kept}, exactly_once=False)
    assert bool(take_what_is_allowed(findings, inputs)) is allowed
    assert findings["pairs"].lost == ([] if allowed else [lost])


def test_at_least_once_may_lose_a_window_that_closes(fed):
    """Its ids are a note, and nothing else is."""
    inputs, outputs = fed
    findings = compare(
        inputs, outputs | {"closed": outputs["closed"][1:], "joined": outputs["joined"][1:]}, exactly_once=False
    )
    [note] = take_what_is_allowed(findings, inputs)
    assert note.startswith("closed: ")
    assert (len(findings["closed"].lost), len(findings["joined"].lost)) == (0, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("joined", [999_999, 0]),
        ("closed", [0, 1, 2]),
        ("totals", [999_999]),
        ("versions", [77, 77]),
        ("pairs", [1, 999_999]),
        ("matched", [999_999, "k1", 0]),
        ("dead-letters", {"id": 999_999}),
    ],
)
def test_wrong_record_is_found(fed, name, value):
    """A record that no input explains is wrong under both guarantees."""
    key, _ = fed[1][name][5]
    invented = [*fed[1][name], (key, json.dumps(value).encode())]
    assert "wrong" in found(fed, True, **{name: invented})[name]
    assert "wrong" in found(fed, False, **{name: invented})[name]


@pytest.mark.parametrize("name", ["joined", "pairs", "dead-letters", "closed"])
def test_lost_record_is_found_among_duplicates(fed, name):
    """At-least-once allows any number of duplicates, but a record missing among them is still found."""
    outputs = fed[1][name]
    missing = outputs[len(outputs) // 2]
    assert found(fed, False, **{name: [each for each in outputs * 2 if each != missing]}) == {name: {"lost"}}


def test_id_lost_from_a_total_is_found_among_duplicates(fed):
    """An id missing from all updates of its group and window is lost, however many updates there are."""
    outputs = fed[1]["totals"]
    _, value = outputs[-20]
    lost = json.loads(value)[0]
    without = [
        (each, json.dumps([number for number in json.loads(numbers) if number != lost]).encode())
        for each, numbers in outputs
    ]
    assert found(fed, False, totals=without * 2) == {"totals": {"lost"}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "ERROR one-StreamThread-1 died (to do: replace thread): 'NoneType' object has no attribute 'put'",
            "A thread of one died",
        ),
        ("WARNING task 0_1: its state is wiped and restored from the beginning", "one wiped a task's state"),
        ("ERROR one-StreamThread-1 died (to do: replace thread): A record was not written: (MSG_SIZE_TOO_LARGE)", None),
    ],
)
def test_problems_are_found_in_the_log(tmp_path, line, problem):
    """A dead thread or a wiped task is a problem, unless the soak itself caused it by having a record refused."""
    replica = Replica("one", "app", {}, tmp_path, static=True)
    replica.log_path.write_text(f"2026-01-01 00:00:00,000 millrace.instance {line}\n")
    replica.figures()
    assert [found.partition(":")[0] for found in replica.problems] == ([problem] if problem else [])


def test_instance_that_ends_by_itself_is_a_problem(tmp_path):
    """An exit code that no signal from the soak explains is reported, once, with the end of the log."""
    replica = Replica("one", "app", {}, tmp_path, static=True)
    replica.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    replica.process.wait()
    replica.check()
    replica.check()
    assert len(replica.problems) == 1
    assert "one ended by itself with exit code 3" in replica.problems[0]


def test_instance_that_a_fault_keeps_from_starting_is_started_again(tmp_path):
    """What ended it is in the last line of its log; that an earlier line is excused is not enough."""
    config = {"application.id": "app", "bootstrap.servers": "127.0.0.1:1", "client.id": "one"}
    replica = Replica("one", "app", config, tmp_path, static=True)
    replica.excuse(ENDED_DENIED.search)
    denied = (
        "millrace.errors.AuthorizationError: errors.dead.letter.queue.topic.name=dead: grant this application's user WRITE on "
        "the topic; it may only read it"
    )
    replica.log_path.write_text(f"Traceback\n{denied}\n")
    replica.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    replica.process.wait()
    replica.check()
    try:
        assert replica.alive
        assert replica.problems == []
    finally:
        replica.kill()
    replica.log_path.write_text(f"{denied}\nSegmentation fault\n")
    replica.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    replica.process.wait()
    replica.check()
    assert len(replica.problems) == 1


@pytest.mark.parametrize("error", [None, StreamsError("no")], ids=["without an error", "with an error"])
def test_replica_returns_one_when_nobody_told_it_to_stop(monkeypatch, tmp_path, error):
    """An unrequested end is a failure, even if the instance cannot say why."""

    def end(streams):
        streams.close()
        streams.error = error

    monkeypatch.setattr(KafkaStreams, "start", end)
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    try:
        config = {"application.id": "app", "bootstrap.servers": "127.0.0.1:1", "client.id": "one"}
        assert main(json.dumps({"application": "app", "config": config, "samples": str(tmp_path / "samples")})) == 1
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def test_seed_repeats_the_plan():
    """The same seed gives the same faults at the same times; another seed gives others."""

    def planned(seed):
        return plan(seed, 600, replicas=3, brokers=3, exactly_once=True)

    assert planned("a") == planned("a")
    assert planned("a") != planned("b")


def test_plan_has_every_fault_and_spares_the_first_instance():
    """An hour has about a thousand faults of every kind; none of them ends the process of the first instance."""
    faults = plan("a", 3600, replicas=3, brokers=3, exactly_once=True)
    assert len(faults) >= 900
    assert {fault.kind for fault in faults} == set(_KINDS)
    assert all(fault.target % 3 for fault in faults if fault.kind in ENDS_PROCESS)
    alone = plan("a", 3600, replicas=3, brokers=1, exactly_once=False)
    assert not {fault.kind for fault in alone} & {"fence", "crash broker", "move leaders"}


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.thorough
def test_short_soak_passes(tmp_path):
    """After a few seconds of faults on one broker the verdict is that the guarantee held, and the figures are written."""
    options = parse(
        ["--minutes", "0.2", "--brokers", "1", "--only", "eos-static", "--seed", "smoke", "--directory", str(tmp_path)]
    )
    with (tmp_path / "console.txt").open("w") as file:
        code = run(options, Console(file=file, width=200))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (code, summary["verdict"]) == (0, "passed"), (tmp_path / "console.txt").read_text()
    assert summary["total"]["records out"] > 0
    assert summary["total"]["stores compared"] > 0
    assert (tmp_path / "resources.svg").read_text().startswith("<svg")
    assert any(name.startswith("fault: ") for name in summary["total"])
