"""Every decision about a group is the one that Kafka Streams 4.3.1 takes: recorded ones, and fresh ones for random groups.

A case is a group: clients with threads, what they own and what state they have, racks, tags, and settings. Compared are what the
leader derives from that (previous tasks, lags), the tasks of each client, whether a probing rebalance follows, and the tasks
of each thread. `AssignmentRecorder.java` makes the cases and says how.
"""

import json
import lzma
import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tests.assignment.recorded import differences
from tests.java_programs import QUIET, compiled_java

from millrace.dev.jars import Bundle, resolve
from millrace.dev.java import find_java, join_class_path

HERE = Path(__file__).parent
RECORDING = HERE / "java-4.3.1-decisions.jsonl.xz"
FRESH_CASES = 400
SEEDS = 10**9


@pytest.fixture(scope="module")
def recorded():
    """Return the recorded cases."""
    with lzma.open(RECORDING, "rt") as lines:
        return [json.loads(line) for line in lines]


def different(cases):
    """Return the cases that are decided differently, with what differs."""
    return {case["case"]: found for case in cases if (found := differences(case))}


@pytest.mark.parametrize("assignor", ["ha", "sticky", "fallback", "helpers"])
def test_recorded_decisions_are_equal(recorded, assignor):
    """The assignor decides every recorded case as Java's does; `helpers` is a custom assignor made of KIP-924's helpers."""
    cases = [case for case in recorded if case["assignor"] == assignor]
    assert len(cases) > 250
    assert different(cases) == {}


def test_recorded_cases_cover_the_features(recorded):
    """Each feature is on in many of the cases, so that equality means something."""
    found = Counter()
    for case in recorded:
        config = case["config"]
        copies = [task for _, standby in case["decision"].values() for task in standby.split()]
        found[config["rack_aware_strategy"]] += 1
        found["tags"] += bool(config["rack_aware_tags"])
        found["standbys"] += bool(copies)
        found["warm-ups"] += max(Counter(copies).values(), default=0) > config["num_standby_replicas"]
        found["probing"] += case["probing"]
        found["unknown lags"] += "ends" not in case
        found["many clients"] += len(case["decision"]) > 8
    few = {feature: count for feature, count in found.items() if count < 200}
    assert few == {}
    assert {"none", "min_traffic", "balance_subtopology"} <= found.keys()


@pytest.mark.java
@pytest.mark.slow
def test_fresh_decisions_are_equal():
    """Java decides random groups that nobody has seen before, and Millrace decides the same."""
    jars = resolve(Bundle.KAFKA_STREAMS)
    classes = compiled_java(sorted((HERE / "java").glob("*.java")), jars)
    seed = random.randrange(SEEDS)
    program = "org.apache.kafka.streams.processor.internals.AssignmentRecorder"
    options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", QUIET]
    command = [find_java().executable, *options, "-cp", join_class_path([classes, *jars]), program]
    result = subprocess.run([*command, str(seed), str(FRESH_CASES)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    cases = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(cases) == FRESH_CASES
    assert different(cases) == {}, f"seed {seed}"
