"""A Java instance and a Python instance of one application in one classic group, which replace each other again and again."""

import random
import re
import sys
import threading
from collections import Counter

import pytest
from confluent_kafka import Producer
from tests.interop.conftest import FIRST_TIMESTAMP, HERE, App, Tail
from tests.java_programs import streams_class_path
from tests.waiting import wait_until

from millrace.dev.java import find_java
from millrace.kafka.offsets import latest_offsets
from millrace.records import TopicPartition
from millrace.serdes import Serdes

pytestmark = [pytest.mark.java, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 3
STATEFUL = {f"{subtopology}_{partition}" for subtopology in (1, 2) for partition in range(PARTITIONS)}
TASKS = STATEFUL | {f"0_{partition}" for partition in range(PARTITIONS)}
STORES = {"counts": 1, "windowed-counts": 1, "customers": 1, "joined": 1, "cities": 2}
"""Store → its sub-topology."""
CUSTOMERS = [f"c{number}" for number in range(60)]
CITIES = [f"city{number}" for number in range(12)]
WINDOW_MS = 10_000
STRING, LONG = Serdes.string(), Serdes.long()
WINDOWED = Serdes.time_windowed(STRING, WINDOW_MS)
STRINGS = "org.apache.kafka.common.serialization.Serdes$StringSerde"
ADDRESSES = {"java": "java.example:7001", "python": "python.example:7002"}
EXPECTED_WARNINGS = re.compile(
    # Topics that are new, coordinators that load, brokers that are busy; settings of this test.
    r" WARN \[(Producer|Consumer|AdminClient) |GETPID|Processing exception handler is not enabled|Using an OS temp directory"
    # Alone in the group.
    r"|Unable to assign 1 of 1 standby tasks|fewer than num.standby.replicas"
    # Java with its own state after a kill, and with what Python committed before a kill: docs/differences.md.
    r"|did not find checkpoint offsets while stores are not empty|corrupted|Unsupported offset metadata found"
    # A member that is late because the machine is busy: its transaction or session has timed out.
    r"|thread is being fenced|Error encountered sending record to topic"
    r"|Cannot add offsets to the transaction|Current transaction failed|is no longer in generation|has begun its next generation"
)
"""What the log may say although nothing is wrong with the other language."""


class Instance:
    """One instance in either language, which keeps its state directory when it is started again."""

    def __init__(self, command, log_path):
        self.app = App(log_path.stem, command, log_path)
        self.active, self.standby, self.hosts, self.positions, self.topology = set(), set(), "", {}, ""
        self.versions = []
        """The versions of its subscriptions, if its assignor tells them."""
        self.restorations = {}
        """Store and partition → (first offset, end) of its last restoration."""
        self._log = log_path.open()
        self._rest = ""

    def read(self):
        """Read what it has printed since the last call."""
        self.app.check()
        *lines, self._rest = (self._rest + self._log.read()).split("\n")
        for line in lines:
            kind, _, text = line.partition(" ")
            match kind:
                case "TASKS":
                    self.active, self.standby = ({*part.split(",")} - {""} for part in text.split("|"))
                case "HOSTS":
                    self.hosts = text
                case "POSITIONS":
                    pairs = (item.rsplit("=", 1) for item in text.split(",") if item)
                    self.positions = {name: int(position) for name, position in pairs}
                case "TOPOLOGY":
                    self.topology = text
                case "VERSION":
                    self.versions.append(int(text))
                case "RESTORE":
                    name, start, end = text.split(" ")
                    self.restorations[name] = int(start), int(end)
        return self

    def complaints(self):
        """Return the warnings and errors in its log, without those that any application has when its peer dies."""
        lines = [line for line in self.app.log().splitlines() if re.search(r" (WARN|WARNING|ERROR|FATAL) ", line)]
        return [line for line in lines if not EXPECTED_WARNINGS.search(line)]

    def end(self, how):
        """Let it end by `stop` or `kill`."""
        getattr(self.app, how)()
        self._log.close()


class Purchases:
    """The application: its topics, its instances, its input and what must come of it."""

    def __init__(self, kafka, directory, class_path, settings):
        self.kafka, self._directory, self._class_path, self._settings = kafka, directory, class_path, settings
        self.name = f"purchases-{random.SystemRandom().getrandbits(32):08x}"
        self.instances, self._started = {}, 0
        self.counts, self.windows, self.city_of = Counter(), Counter(), {}
        self._chance = random.Random(1)
        self._load, self._stop_load = None, threading.Event()
        self._tails, self.undelivered = {}, None
        self._inputs = [f"{self.name}-{name}" for name in ("purchases", "customers")]
        kafka.create_topics(
            *self._inputs,
            *(f"{self.name}-{name}" for name in ("counts", "windowed", "joined", "cities")),
            partitions=PARTITIONS,
        )

    def start(self, language, **changes):
        """Start the instance of a language, with the state that it left, and with changed settings."""
        settings = {
            "application.id": self.name,
            "topics": self.name,
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "application.server": ADDRESSES[language],
            "state.dir": str(self._directory / f"state-{language}"),
            "default.key.serde": STRINGS,
            "default.value.serde": STRINGS,
            "num.standby.replicas": "1",
            "commit.interval.ms": "100",
            "statestore.cache.max.bytes": "0",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": "10000",
            "heartbeat.interval.ms": "1000",
            **self._settings,
            **changes,
        }
        command = [sys.executable, str(HERE / "purchases.py")]
        if language == "java":
            options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=INFO"]
            command = [str(find_java().executable), *options, "-cp", self._class_path, "Purchases"]
        command += [f"{name}={value}" for name, value in settings.items()]
        self._started += 1
        self.instances[language] = Instance(command, self._directory / f"{self._started}-{language}.log")
        return self.instances[language]

    def end(self, language, how):
        """End an instance by `stop` or `kill`."""
        instance = self.instances.pop(language)
        instance.end(how)
        return instance

    # Input

    def begin_load(self):
        """Write purchases and moves of customers until `end_load`."""
        self._load = threading.Thread(target=self._produce, daemon=True)
        self._load.start()

    def end_load(self):
        """Stop writing; what was written is in the model."""
        self._stop_load.set()
        self._load.join(60)
        assert not self._load.is_alive()
        assert not self.undelivered

    def _produce(self):
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "enable.idempotence": True,
                # With more than one, librdkafka takes the first batch for a new topic as delivered if a broker refuses it because
                # it does not lead the partition yet, and then accepts the second.
                "max.in.flight.requests.per.connection": 1,
                "partitioner": "murmur2_random",  # as Java's, because customers are joined with counts
            }
        )
        number, chance, failures = 0, self._chance, []

        def delivered(error, _):
            if error is not None:
                failures.append(error)

        while not self._stop_load.wait(0.1):
            for _ in range(10):
                timestamp = FIRST_TIMESTAMP + number * 20
                customer = chance.choice(CUSTOMERS)
                producer.produce(self._inputs[0], customer, str(number), timestamp=timestamp, on_delivery=delivered)
                self.counts[customer] += 1
                self.windows[customer, timestamp - timestamp % WINDOW_MS] += 1
                number += 1
            for customer in CUSTOMERS if number == 10 else chance.sample(CUSTOMERS, 2):
                self.city_of[customer] = chance.choice(CITIES)
                producer.produce(self._inputs[1], self.city_of[customer], customer, timestamp=timestamp)
            producer.poll(0)
        self.undelivered = producer.flush(60) or failures

    # What instances have

    def read(self):
        """Read what all instances have printed."""
        for instance in self.instances.values():
            instance.read()

    def wait_for(self, condition, what, timeout_s=120.0):
        """Wait for a condition, while no instance may fail."""

        def state():
            shown = [
                f"{language}: active {sorted(one.active)}, standby {sorted(one.standby)}, hosts {one.hosts}, "
                f"positions {one.positions}, complaints {one.complaints()[-5:]}\n{one.app.log()[-3000:]}"
                for language, one in self.instances.items()
            ]
            return "\n".join([what() if callable(what) else what, *shown])

        def attempt():
            self.read()
            return condition()

        return wait_until(attempt, state, timeout_s, poll_s=0.1)

    def wait_shared(self):
        """Wait until both have active tasks, each has standbys of the other's, and both know the same hosts."""
        java, python = self.instances["java"], self.instances["python"]

        def shared():
            return (
                java.active
                and python.active
                and java.active | python.active == TASKS
                and not java.active & python.active
                and java.standby == python.active & STATEFUL
                and python.standby == java.active & STATEFUL
                and java.hosts == python.hosts
                and all(address in java.hosts for address in ADDRESSES.values())
            )

        self.wait_for(shared, "sharing the tasks")

    def wait_alone(self, language):
        """Wait until an instance has all tasks."""
        instance = self.instances[language]
        self.wait_for(lambda: instance.active == TASKS and not instance.standby, f"{language} having all tasks")

    def wait_standbys(self, language):
        """Wait until an instance's standbys have applied all that is in the changelogs now; return how far that is."""
        instance = self.instances[language]
        wanted = {
            TopicPartition(f"{self.name}-{store}-changelog", partition): f"{store}-{partition}"
            for store, subtopology in STORES.items()
            for partition in range(PARTITIONS)
            if f"{subtopology}_{partition}" in instance.standby
        }
        found = latest_offsets(self.kafka.admin(), wanted.keys(), committed_only=True)
        ends = {wanted[partition]: offset for partition, offset in found.items()}
        # The last record is followed by the marker of its transaction, which is not applied.
        self.wait_for(
            lambda: all(instance.positions.get(name, -1) >= end - 1 for name, end in ends.items()),
            f"{language}'s standbys at {ends}",
        )
        return ends

    # Output

    def read_topic(self, topic):
        """Return all committed records of a topic."""
        if topic not in self._tails:
            self._tails[topic] = Tail(self.kafka, f"{self.name}-{topic}")
        return self._tails[topic].read_to_end()

    def close(self):
        """Stop writing and reading, and kill what still runs."""
        try:
            if self._load is not None:
                self.end_load()
        finally:
            for tail in self._tails.values():
                tail.close()
            for language in [*self.instances]:
                self.end(language, "kill")

    def last(self, topic, key_serde=STRING, value_serde=LONG):
        """Return the last value per key of a topic."""
        records = self.read_topic(topic)
        return {key_serde.deserialize("", one.key()): value_serde.deserialize("", one.value()) for one in records}

    def outputs(self):
        """Return the last values of all output topics."""
        windowed = self.last("windowed", WINDOWED)
        return {
            "counts": self.last("counts"),
            "windowed": {(key.key, key.window.start): count for key, count in windowed.items()},
            "joined": self.last("joined", value_serde=STRING),
            "cities": {city: count for city, count in self.last("cities").items() if count},
        }

    def model(self):
        """Return what the output topics must end with."""
        return {
            "counts": dict(self.counts),
            "windowed": dict(self.windows),
            "joined": {customer: f"{self.city_of[customer]}:{count}" for customer, count in self.counts.items()},
            "cities": dict(Counter(self.city_of.values())),
        }

    def wait_output(self, condition):
        """Wait until a condition on the outputs and the model is true."""
        model = self.model()
        self.wait_for(lambda: condition(self.outputs(), model), lambda: difference(self.outputs(), model))


def difference(outputs, model):
    """Say where outputs differ from the model: key → (output, model)."""
    found = []
    for topic, expected in model.items():
        keys = sorted({key for key, _ in outputs[topic].items() ^ expected.items()})
        pairs = {key: (outputs[topic].get(key), expected.get(key)) for key in keys[:8]}
        found += [f"{topic}: {len(keys)} of {len(expected)}: {pairs}"] if keys else []
    return "; ".join(found)


def reaches(outputs, model):
    """At least once: every count is at least what it should be, and every customer is where it moved to."""
    counted = all(
        outputs[topic].get(key, 0) >= count for topic in ("counts", "windowed") for key, count in model[topic].items()
    )
    cities = {customer: text.split(":")[0] for customer, text in outputs["joined"].items()}
    return counted and cities == {customer: text.split(":")[0] for customer, text in model["joined"].items()}


def check_each_count_once(application):
    """Without the cache, exactly-once output counts 1, 2, 3 … for each key without gaps or repetitions."""
    for topic in ("counts", "windowed"):
        seen = Counter()
        for record in application.read_topic(topic):
            count = LONG.deserialize("", record.value())
            assert count == seen[record.key()] + 1, f"{topic}: {record.key()} went from {seen[record.key()]} to {count}"
            seen[record.key()] = count


def check_changelogs(application):
    """The changelogs of both languages' stores end with the model's state."""
    model = application.model()
    assert application.last("counts-changelog") == model["counts"]
    assert application.last("joined-changelog", value_serde=STRING) == model["joined"]
    assert application.last("customers-changelog", value_serde=STRING) == application.city_of


@pytest.fixture(scope="session")
def class_path():
    """Compile the Java program and return the class path to run it with."""
    return streams_class_path(HERE / "java" / "Purchases.java")


@pytest.fixture
def purchases(kafka, tmp_path, class_path):
    """Return a factory of the application; what still runs when the test ends is killed."""
    made = []

    def make(**settings):
        made.append(Purchases(kafka, tmp_path, class_path, settings))
        return made[-1]

    yield make
    for application in made:
        application.close()


@pytest.mark.parametrize(
    ("first", "guarantee", "upgrade_from"),
    [
        pytest.param("java", "exactly_once_v2", None, marks=pytest.mark.thorough),
        ("python", "exactly_once_v2", "3.3"),
        pytest.param("java", "at_least_once", "4.2", marks=pytest.mark.thorough),
        pytest.param("python", "at_least_once", None, marks=pytest.mark.thorough),
    ],
)
def test_both_share_a_classic_group(purchases, first, guarantee, upgrade_from):
    """Tasks move both ways under load, by kills and clean ends; standbys of one go on for the other, and restore only a tail.

    What a migration begins with: the descriptions of equal topologies are equal, with all generated names. The first to join
    leads the group, and whoever stays leads after that; so each language leads at some time. A Java instance whose subscription
    has a later version than ours learns ours from the Python leader, and shares the tasks.
    """
    upgrading = {"upgrade.from": upgrade_from} if upgrade_from else {}
    application = purchases(**{"processing.guarantee": guarantee, **upgrading})
    second = "python" if first == "java" else "java"
    application.start(first)
    application.begin_load()
    application.wait_alone(first)
    application.start(second)
    application.wait_shared()
    java, python = (application.instances[language] for language in ("java", "python"))
    assert "Sub-topology: 2" in java.topology
    assert python.topology == java.topology
    ended = []

    for leaves, how in [(first, "kill"), (second, "stop")]:
        stays = second if leaves == first else first
        survivor = application.instances[stays]
        standbys = application.wait_standbys(stays)
        survivor.restorations.clear()
        ended.append(application.end(leaves, how))
        application.wait_alone(stays)
        begun = {name: start for name, (start, _) in survivor.restorations.items() if name in standbys}
        assert all(start >= standbys[name] - 1 for name, start in begun.items()), (how, begun, standbys)
        later = (leaves, how) == ("java", "stop")
        joined = application.start(leaves, **({"future": "true"} if later else {}))
        application.wait_shared()
        if later:
            assert (joined.versions[0], joined.versions[-1]) == (12, 11)

    application.end_load()
    if guarantee == "exactly_once_v2":
        application.wait_output(lambda outputs, model: outputs == model)
    else:
        application.wait_output(reaches)
    ended += [application.end(first, "stop"), application.end(second, "stop")]
    if guarantee == "exactly_once_v2":
        check_each_count_once(application)
        check_changelogs(application)
    for language, words in {"java": "per-consumer assignment", "python": "Assigning generation"}.items():
        assert any(words in one.app.log() for one in ended if language in one.app.name), f"{language} never led"
    assert [line for one in ended for line in one.complaints()] == []
