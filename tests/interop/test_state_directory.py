"""A state directory is passed between Java and Python: what one wrote, the other opens, reads and continues.

One application keeps stores of every kind (`java/StoreKeeper.java`, `store_keeper.py`), is stopped, and is started again in the
other language on the same directory. Whatever the order of languages, each run must read the same from its stores, leave the
same bytes on disk, and find nothing to restore.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from rocksdict import AccessType, Options, Rdict
from tests import forked
from tests.java_programs import streams_class_path
from tests.waiting import wait_until

from millrace.dev.java import find_java

pytestmark = [pytest.mark.java, pytest.mark.broker, pytest.mark.slow]

HERE = Path(__file__).parent
EPOCH = int(time.time()) // 240 * 240_000 - 3_600_000
"""The first record's time (ms): recent, since the broker deletes old records, and at the start of a segment."""
PHASE_MS = 90_000
HISTORY_MS = 60_000
VERSIONED_SEGMENT_MS = 20_000
COMMANDS = 400
DEADLINE_S = 120.0
PAIRS = ["kv", "kv-timestamped", "kv-headers"]
WINDOWS = [
    "window",
    "window-duplicates",
    "window-timestamped",
    "window-headers",
    "window-ordered",
    "window-ordered-index",
    "window-ordered-headers",
]
SESSIONS = ["session", "session-headers", "session-ordered", "session-ordered-headers"]
STORES = [*PAIRS, *WINDOWS, *SESSIONS, "versioned"]
PROCESS_FILE = "kafka-streams-process-metadata"


@dataclass(frozen=True)
class Command:
    """One record of the input topic."""

    store: str
    words: list
    timestamp: int
    headers: list


def commands_of_phase(phase):
    """Return changes to all stores, with times around the phase's; some are late, some too late."""
    chance = random.Random(phase)
    commands = []
    for number in range(COMMANDS):
        now = EPOCH + phase * PHASE_MS + number * PHASE_MS // COMMANDS
        store = chance.choice(STORES)
        key = chance.choice(["a", "aa", "ab", "b", "ba", "c"])
        text = None if chance.random() < 0.2 else f"{phase}.{number}"
        at = max(now - chance.choice([0, 0, 0, 5_000, 30_000, 70_000, 130_000]), EPOCH)
        if store in PAIRS:
            operation = chance.choice(["put", "put", "append", "putIfAbsent", "delete"])
            if operation == "append":
                text = text or "x"
            words = ["delete", key] if operation == "delete" else [operation, key, text]
        elif store in WINDOWS:
            start = (
                at // 10_000 * 10_000
            )  # of duplicates: one that no other phase has, where Java would replace its values
            words = ["put", key, text, start + phase if store == "window-duplicates" else start]
        elif store in SESSIONS:
            words = ["put", key, text, at, at + chance.choice([0, 0, 1_500, 40_000])]
        else:  # Java finds a row of history again only after it wrote to the row's segment, so the late ones come first
            operation = "delete" if text is None and chance.random() < 0.5 else "put"
            words = [operation, key, text, now if phase else at]
        headers = [("trace", text.encode()), ("empty", None)] if text and chance.random() < 0.4 else []
        commands.append(Command(store, words, now, headers))
    if not phase:  # deleting the latest version at its own time leaves no trace: a late version is the latest then
        end = EPOCH + PHASE_MS - 1
        versions = [["put", "d", "0", end], ["delete", "d", None, end], ["put", "d", "late", end - 20]]
        commands += [Command("versioned", words, end, []) for words in versions]
    return commands


class Run:
    """One run of the application, in one language."""

    def __init__(self, application, language, **settings):
        self.language = language
        self._application = application
        settings = {
            "application.id": application.name,
            "bootstrap.servers": application.kafka.bootstrap_servers,
            "state.dir": str(application.directory),
            "input": application.input,
            "epoch": str(EPOCH),
            "commit.interval.ms": "100",
            "auto.offset.reset": "earliest",
            **application.settings,
            **settings,
        }
        if language == "java":
            command = [str(find_java().executable), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
            command += ["-cp", application.class_path, "StoreKeeper"]
        else:
            command = [sys.executable, str(HERE / "store_keeper.py")]
        command += [f"{name}={value}" for name, value in settings.items()]
        number = len(application.runs)
        self._log_path = application.directory.with_name(f"{application.name}-{number}-{language}.log")
        self._log = self._log_path.open("w")
        self._process = forked.Popen(command, stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT)
        application.runs.append(self)

    def lines(self, word):
        """Return the lines it has printed that start with a word, without that word."""
        whole, _, _ = self._log_path.read_text().rpartition("\n")
        return [line.removeprefix(f"{word} ") for line in whole.splitlines() if line.startswith(f"{word} ")]

    def wait_for(self, word, what):
        """Wait until it prints a line."""
        wait_until(
            lambda: what in self.lines(word),
            lambda: f"{self.language} prints {word} {what}:\n{self.tail()}",
            DEADLINE_S,
            meanwhile=self.check,
        )

    def tail(self):
        """Return the end of what it has printed."""
        return self._log_path.read_text()[-6000:]

    def check(self):
        """Fail if it has ended or is in error."""
        tail = self.tail()
        assert self._process.poll() is None, f"{self.language} ended with {self._process.returncode}:\n{tail}"
        assert "\nERROR\n" not in tail, f"{self.language} failed:\n{tail}"

    def reads(self, label):
        """Wait for the dump with that label and return it: store → read → result."""
        self.wait_for("DUMPED", label)
        found = [json.loads(line) for line in self.lines("READ")]
        return {reads["store"]: reads for reads in found if reads["label"] == label}

    def restored(self):
        """Return, per store, (first offset, end offset, number of records) of its restoration."""
        starts = {store: (int(start), int(end)) for store, start, end in map(str.split, self.lines("RESTORE"))}
        return {store: (*starts[store], int(total)) for store, total in map(str.split, self.lines("RESTORED"))}

    def stop(self):
        """Let it commit, close its stores and end."""
        self._process.stdin.close()
        try:
            code = self._process.wait(DEADLINE_S)
        finally:
            self.kill()
        assert code == 0, f"{self.language} ended with {code}:\n{self._log_path.read_text()[-6000:]}"

    def kill(self):
        """End it immediately."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if not self._process.stdin.closed:
            self._process.stdin.close()
        self._log.close()


class Application:
    """One application id with its input topic and its state directory."""

    def __init__(self, kafka, directory, class_path, settings):
        self.kafka = kafka
        self.class_path = class_path
        self.settings = settings
        self.name = f"sd-{random.SystemRandom().getrandbits(32):08x}"
        self.input = f"{self.name}-commands"
        self.directory = directory / self.name
        self.runs = []
        kafka.create_topics(self.input, partitions=1)

    def send(self, commands):
        """Write commands to the input topic."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 5})
        for command in commands:
            producer.produce(
                self.input,
                json.dumps(command.words),
                command.store,
                timestamp=command.timestamp,
                headers=command.headers,
            )
            producer.poll(0)
        assert producer.flush(120) == 0

    def ask_for(self, label, timestamp):
        """Request a dump from the running program."""
        self.send([Command("*", ["dump", label], timestamp, [])])

    def committed(self):
        """Return whether the whole input is committed."""
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": self.name})
        try:
            partition = TopicPartition(self.input, 0)
            _, end = consumer.get_watermark_offsets(partition, 60)
            return consumer.committed([partition], 60)[0].offset == end
        finally:
            consumer.close()

    def status_on_disk(self, store):
        """Return what a key-value store's `status` says on disk, even while it is open; 0 if it is changing."""
        try:
            rows = _rows_of(self.directory / self.name / "0_0" / "rocksdb" / store)
        except Exception as error:  # rocksdict has no more specific class
            if "No such file or directory" in str(error):  # it was compacted away
                return 0
            raise
        return int.from_bytes(rows["offsets"].get(b"status", b""), "big")

    def process_id(self):
        """Return what the process file says."""
        return json.loads((self.directory / self.name / PROCESS_FILE).read_text())["processId"]

    def on_disk(self):
        """Return the rows of all databases: (directory, column family, key) → value, the application's name left out."""
        base = self.directory / self.name
        found = {}
        for current in sorted(base.rglob("CURRENT")):
            place = str(current.parent.relative_to(base))
            for family, rows in _rows_of(current.parent).items():
                found[place, family, None] = "there is one"
                for key, value in rows.items():
                    found[place, family, self._anonymous(key)] = self._anonymous(value)
        return found

    def _anonymous(self, data):
        return data.replace(self.name.encode(), b"<application>")


def _rows_of(directory):
    families = Rdict.list_cf(str(directory), Options(raw_mode=True))
    options = {name: Options(raw_mode=True) for name in families if name != "default"}
    database = Rdict(str(directory), Options(raw_mode=True), options, AccessType.read_only())
    try:
        return {
            name: dict((database.get_column_family(name) if name in options else database).items()) for name in families
        }
    finally:
        database.close()


@pytest.fixture(scope="module")
def class_path():
    """Compile the Java program and return the class path to run it with."""
    return streams_class_path(HERE / "java" / "StoreKeeper.java")


@pytest.fixture(scope="module")
def application(kafka, class_path, tmp_path_factory):
    """Make applications; what is still running at the end is killed."""
    made = []

    def make(**settings):
        made.append(Application(kafka, tmp_path_factory.mktemp("state"), class_path, settings))
        return made[-1]

    yield make
    for each in made:
        for run in each.runs:
            run.kill()


@dataclass(frozen=True)
class Seen:
    """What one run showed."""

    at_start: dict
    at_end: dict
    restored: dict
    on_disk: dict
    process_id: str
    thread: str


def run_phase(application, language, phase):
    """Start the application, wait until it has executed a phase's commands, and stop it."""
    run, at_start = _start(application, language)
    application.send(commands_of_phase(phase))
    application.ask_for("end", EPOCH + (phase + 1) * PHASE_MS - 1)
    at_end = run.reads("end")
    run.stop()
    return Seen(
        at_start, at_end, run.restored(), application.on_disk(), application.process_id(), run.lines("THREAD")[0]
    )


def _start(application, language):
    """Start the application, and return the run and what it reads at the start.

    Java 4.3.1 dies if the first store that it finds corrupted has segments: the one that could not be opened stays among the
    open ones (KAFKA-20808). By then it has wiped the state, so it is started once more.
    """
    run = Run(application, language)
    try:
        return run, run.reads("start")
    except AssertionError:
        if language != "java" or "AbstractSegments.committedOffset" not in run.tail():
            raise
        run.kill()
    run = Run(application, language)
    return run, run.reads("start")


@pytest.fixture(scope="module")
def java_alone(application):
    """What three runs of Java show, per guarantee."""
    known = {}

    def runs(guarantee):
        if guarantee not in known:
            alone = application(**{"processing.guarantee": guarantee})
            known[guarantee] = [run_phase(alone, "java", phase) for phase in range(3)]
        return known[guarantee]

    return runs


def _check_same(what, found, expected):
    """Fail with the names under which two dictionaries differ, and both values."""
    names = sorted((name for name in {**expected, **found} if found.get(name) != expected.get(name)), key=str)
    text = "\n".join(f"{name}\n  found    {found.get(name)}\n  expected {expected.get(name)}" for name in names)
    assert not names, f"{what}: {len(names)} differ from Java alone:\n{text}"


def _check_reads(what, found, expected, stores):
    """Compare all reads of some stores."""
    _check_same(what, *({(s, r): found for s in stores for r, found in dump[s].items()} for dump in (found, expected)))


def _comparable(on_disk, phase, exact):
    """Leave out what Java does not clean up, while Millrace does.

    After a restart its versioned stores no longer know which segments to delete (and they never keep their position), and index
    rows of a time-ordered store remain when null is put. Of the numbers that tell duplicates apart only the order counts: Java
    begins at 1 in every run.
    """
    oldest = (EPOCH + (phase + 1) * PHASE_MS - HISTORY_MS) // VERSIONED_SEGMENT_MS
    kept, duplicates = {}, Counter()
    for (place, family, key), value in sorted(on_disk.items(), key=lambda row: (*row[0][:2], row[0][2] or b"")):
        if place.endswith("/versioned") and isinstance(key, bytes):
            segment = int.from_bytes(key[:8], "big", signed=True)
            if key == b"position" or (family == "default" and -1 < segment <= oldest):
                continue
        if "-ordered" in place and value == b"" and (place, family, _base_row(place, key)) not in on_disk:
            continue
        name = key
        if "/window-duplicates/" in place and family == "default" and key is not None:
            duplicates[place, key[:-4]] += 1
            name = key[:-4], duplicates[place, key[:-4]]
        an_offset = family == "offsets" and key is not None and b"-changelog-" in key
        kept[place, family, name] = "an offset" if an_offset and not exact else value
    return kept


def _base_row(place, index_row):
    """Return the key of the row that an index row stands for."""
    if "/session" in place:
        return b"\0" + index_row[-16:] + index_row[1:-16]
    return b"\0" + index_row[-12:-4] + index_row[1:-12] + index_row[-4:]


def _check_history(what, before, after, expected, language, phase):
    """Compare what a restart leaves of the versions: the latest ones, and (Java forgets them) those within the history."""
    _check_same(what, {"get": after["get"]}, {"get": expected["get"]})
    if language == "python" and before is not None:
        oldest = phase * PHASE_MS - HISTORY_MS
        reads = {f"get {as_of}" for as_of in range(0, phase * PHASE_MS, 10_000) if as_of >= oldest}
        assert reads <= after.keys()
        _check_same(what, {read: after[read] for read in reads}, {read: before[read] for read in reads})


@pytest.mark.parametrize("guarantee", [pytest.param("at_least_once", marks=pytest.mark.thorough), "exactly_once_v2"])
@pytest.mark.parametrize(
    "languages",
    [
        pytest.param(("java", "python", "java"), id="java-first"),
        pytest.param(("python", "java", "python"), id="python-first", marks=pytest.mark.thorough),
    ],
)
def test_state_directory_is_interchangeable(application, java_alone, languages, guarantee):
    """Reads, bytes on disk, offsets and process id are as with Java alone, and nothing is restored after the first run."""
    shared = application(**{"processing.guarantee": guarantee})
    process_ids = set()
    before = None
    for phase, language in enumerate(languages):
        expected, seen = java_alone(guarantee)[phase], run_phase(shared, language, phase)
        run = f"run {phase}, {language}"
        at_start = f"{run}, reads at its start"
        _check_reads(at_start, seen.at_start, expected.at_start, [*PAIRS, *WINDOWS, *SESSIONS])
        _check_history(at_start, before, seen.at_start["versioned"], expected.at_start["versioned"], language, phase)
        before = seen.at_end["versioned"]
        _check_reads(f"{run}, reads at its end", seen.at_end, expected.at_end, STORES)
        exact = guarantee == "at_least_once"  # else commits matter: each also takes an offset
        found_rows, expected_rows = (_comparable(rows, phase, exact) for rows in (seen.on_disk, expected.on_disk))
        _check_same(f"{run}, rows on disk", found_rows, expected_rows)
        assert seen.restored.keys() == set(STORES)
        if exact:
            _check_same(f"{run}, restoration", seen.restored, expected.restored)
        if phase:
            assert all(total == 0 for _, _, total in seen.restored.values())
            assert all(start > 0 for start, _, _ in seen.restored.values())
        process_ids.add(seen.process_id)
        assert seen.process_id in seen.thread
    assert len(process_ids) == 1


KILLED = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1500"}
UNCOMMITTED = {"commit.interval.ms": "30000", "producer.transaction.timeout.ms": "60000"}


@pytest.mark.parametrize(
    ("killed", "follower", "guarantee", "wiped"),
    [
        pytest.param("java", "python", "at_least_once", False, marks=pytest.mark.thorough),
        pytest.param("python", "java", "at_least_once", False, marks=pytest.mark.thorough),
        pytest.param("java", "python", "exactly_once_v2", True, marks=pytest.mark.thorough),
        pytest.param("python", "java", "exactly_once_v2", True, marks=pytest.mark.thorough),
        pytest.param("python", "python", "exactly_once_v2", False, marks=pytest.mark.thorough),
    ],
)
def test_killed_program_leaves_a_usable_directory(application, java_alone, killed, follower, guarantee, wiped):
    """The next program loses and repeats nothing; under exactly-once, state that Java may not have committed is wiped.

    Java also wipes what Millrace leaves, since it cannot know that only committed data is written.
    """
    shared = application(**{"processing.guarantee": guarantee})
    run_phase(shared, killed, 0)
    dirty = killed == "java" and guarantee == "exactly_once_v2"
    run = Run(shared, killed, **{"small.buffers": "yes"}, **KILLED, **(UNCOMMITTED if dirty else {}))
    shared.send(commands_of_phase(1))
    end = EPOCH + 2 * PHASE_MS - 1
    for round_, text in enumerate(["x" * 100_000, None, None]):  # more than a write buffer, so that RocksDB flushes
        shared.send([Command(store, ["put", "~", text], end, []) for store in PAIRS])
        shared.ask_for(f"round {round_}", end)
        run.reads(f"round {round_}")
        if not dirty:
            wait_until(shared.committed, "everything committed", DEADLINE_S)
    for store in PAIRS:
        wait_until(lambda store=store: shared.status_on_disk(store) != 0, f"{store} marked as open on disk", DEADLINE_S)
    run.kill()

    seen = run_phase(shared, follower, 2)

    what = f"{follower} after a killed {killed}, reads at the end"
    expected = java_alone(guarantee)[2].at_end
    # Like Java, we restore duplicates under other numbers than they had on disk: later ones replace earlier ones.
    _check_reads(what, seen.at_end, expected, [store for store in STORES if store != "window-duplicates"])
    for store in PAIRS:
        start, _, total = seen.restored[store]
        assert (start == 0) == wiped, (store, seen.restored[store])
        assert total > 0 or not wiped
