"""Errors in an application's environment, as `millrace run` reports them: one line, the exit code, and no traceback."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from tests import forked
from tests.brokers import PASSWORDS, login, new_topic
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.broker

PROGRAM = '''\
from millrace.dsl import Consumed
from millrace.serdes import Serdes


def topology(builder, config):
    """Count the numbers of each key."""
    numbers = builder.stream("{source}", Consumed.with_(Serdes.string(), Serdes.integer()))
    numbers.group_by_key().count().to_stream().to("{sink}")


def broken():
    """Fail."""
    return {{}}["missing"]
'''
NUMBER = (7).to_bytes(4, "big")
LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}


class Instance:
    """The program in its folder, with its own input topic."""

    start = ("-m", "millrace.cli")
    """How Python starts the command."""

    def __init__(self, kafka, folder):
        self.kafka, self.folder = kafka, folder
        self.source, self.id = f"numbers-{secrets.token_hex(4)}", f"app-{secrets.token_hex(4)}"
        (folder / "shop.py").write_text(PROGRAM.format(source=self.source, sink=new_topic(kafka, "out")))

    def command(self, entrypoint="shop.py", *, servers=None, state_dir="state", **settings):
        """Return the command line; underscores in settings stand for dots."""
        options = ["--application-id", self.id, "--bootstrap", servers or self.kafka.bootstrap_servers]
        options += ["--state-dir", str(state_dir)]
        options += [part for key, value in settings.items() for part in ("-c", f"{key.replace('_', '.')}={value}")]
        return [sys.executable, *self.start, "run", entrypoint, *options]

    def fails(self, code, *args, prefix=(), **settings):
        """Run the program, which must end with this exit code; return the line that says why."""
        result = forked.run(
            [*prefix, *self.command(*args, **settings)],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=120,
        )
        assert result.returncode == code, result.stderr
        assert "Traceback" not in result.stderr, result.stderr
        assert result.stdout == ""
        [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        return line.removeprefix("Error: ")


@pytest.fixture
def app(kafka, tmp_path):
    """Return the program, whose topic does not exist yet."""
    return Instance(kafka, tmp_path)


def produce(app, value, partition=0):
    """Write a record to the program's topic."""
    producer = Producer({"bootstrap.servers": app.kafka.bootstrap_servers})
    producer.produce(app.source, value, b"key", partition)
    assert producer.flush(PATIENCE_S) == 0


IMPATIENT = """
import sys
from millrace.cli import main
from millrace.kafka.connection_check import check_connection

check_connection.__defaults__ = (1.0,)
main()
"""


def test_brokers_that_do_not_answer(app):
    """The error has the addresses, what was tried and for how long, and what may be in between."""
    app.start = ["-c", IMPATIENT]
    assert app.fails(1, servers="127.0.0.1:1") == (
        "No broker of bootstrap.servers=127.0.0.1:1 answered within 1 s (127.0.0.1:1: [Errno 111] Connection refused). "
        "Check that the brokers are running, that host and port are right, and that no firewall, network policy or DNS problem "
        "is in the way"
    )


def test_unknown_entrypoint(app):
    """The error suggests the closest name."""
    assert app.fails(2, "shop.py:topologi") == (
        f"shop.py:topologi: `shop` ({app.folder}/shop.py) has no `topologi`; did you mean `topology`?"
    )
    assert app.fails(2, "shopping.py") == f"There is no file shopping.py (looked from {app.folder})"


def test_entrypoint_that_raises(app):
    """The error has the exception and the user's line."""
    assert app.fails(2, "shop.py:broken") == (f"shop.py:broken raised KeyError: 'missing' at {app.folder}/shop.py:13")


@pytest.mark.parametrize(("user", "password"), [("alice", "not-the-secret"), ("bob", PASSWORDS["alice"])])
def test_wrong_user_or_password(app, user, password):
    """Only the broker knows which of the two is wrong; the password is not shown."""
    line = app.fails(
        1,
        servers=app.kafka.sasl_bootstrap_servers,
        **LOGIN,
        sasl_jaas_config=login(user, password)["sasl.jaas.config"],
    )
    assert line == (
        f"The broker at {app.kafka.sasl_bootstrap_servers} refused the credentials: the user name or password is wrong for "
        "sasl.mechanism=PLAIN"
    )


def test_missing_password(app):
    """Missing credentials are a configuration error."""
    line = app.fails(2, **LOGIN)
    assert line == (
        "sasl.mechanism=PLAIN needs credentials: give sasl.jaas.config with username and password, or sasl.username and "
        "sasl.password"
    )


def test_plaintext_client_at_a_listener_with_passwords(app):
    """The error says that a listener is there, but uses another protocol."""
    servers = app.kafka.sasl_bootstrap_servers
    assert app.fails(1, servers=servers) == (
        f"The broker at {servers} accepts connections but not security.protocol=PLAINTEXT: it closed the connection; this "
        "listener asks for SASL or TLS. Set security.protocol to the listener's (PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL), or use another listener's port"
    )


def test_missing_input_topic(app):
    """The error names the topic, which is not created."""
    assert app.fails(1) == (
        f"Application {app.id} reads topics that do not exist: {app.source}. Create them (Millrace never creates input "
        "topics), or correct their names"
    )


def test_internal_topic_with_another_partition_count(app):
    """The error has the topic, both numbers, and what can be done."""
    app.kafka.create_topics(app.source, partitions=2)
    changelog = f"{app.id}-KSTREAM-AGGREGATE-STATE-STORE-0000000001-changelog"
    app.kafka.create_topics(changelog, partitions=3, config={"cleanup.policy": "compact"})
    line = app.fails(1)
    assert f"Internal topics of {app.id} do not fit its input topics: {changelog} has 3 partitions but needs 2." in line
    assert "or reset the application (`millrace reset`)" in line


def test_negative_timestamp(app):
    """The error has the record, its timestamp, and what to use instead."""
    app.kafka.create_topics(app.source)
    producer = KafkaProducer(bootstrap_servers=app.kafka.bootstrap_servers)
    producer.send(app.source, value=NUMBER, key=b"key", timestamp_ms=-1).get(30)
    producer.close()
    line = app.fails(1)
    assert line.startswith(f"Record at offset 0 of {app.source}-0 has the negative timestamp -1. ")
    assert "Use another timestamp extractor to skip such records (log_and_skip_on_invalid_timestamp)" in line


def test_undecodable_record(app):
    """The error has the record, the serde, what is wrong with the bytes, and how to skip the record."""
    app.kafka.create_topics(app.source, partitions=2)
    produce(app, b"xx", partition=1)
    assert app.fails(1) == (
        f"Task 0_1: source KSTREAM-SOURCE-0000000000 cannot read the value at offset 0 of {app.source}-1 with IntegerSerde(): "
        f"IntegerSerde() expects exactly 4 bytes, but got 2 bytes from topic '{app.source}': the topic was written with another "
        "serde. Give the source the serde the records were written with, or set deserialization.exception.handler to "
        "LogAndContinueExceptionHandler to skip such records."
    )


def test_state_directory_of_another_process(app):
    """The error has the directory and the process that holds it; that process continues."""
    app.kafka.create_topics(app.source)
    status = app.folder / "status.json"
    command = [*app.command(), "--status-file", str(status)]
    with forked.Popen(command, cwd=app.folder, stderr=subprocess.DEVNULL) as holder:
        try:
            wait_until(
                lambda: holder.poll() is not None or (status.exists() and '"RUNNING"' in status.read_text()), "running"
            )
            assert holder.poll() is None
            assert app.fails(1) == (
                f"The state directory {app.folder}/state/{app.id} is in use by process {holder.pid}. Two instances of an "
                "application on one machine need different state.dir settings; if the other one should not run, stop it"
            )
            assert holder.poll() is None
        finally:
            holder.send_signal(signal.SIGTERM)
    assert holder.returncode == 0


def in_own_namespace(folder, options):
    """Return a command prefix that mounts a file system over a folder, visible only to the command."""
    mount = f'mount -t tmpfs -o {options} tmpfs {folder} && exec "$@"'
    prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system in a namespace of one's own is not allowed here")
    return prefix


def test_read_only_state_directory(app):
    """A volume that is mounted read-only gives another error than missing permission."""
    app.kafka.create_topics(app.source)
    (app.folder / "volume").mkdir()
    assert app.fails(1, state_dir="volume", prefix=in_own_namespace(app.folder / "volume", "ro")) == (
        f"Cannot create the state directory {app.folder}/volume/{app.id}: Read-only file system. To fix it: the volume is "
        "mounted read-only: mount it writable, or set state.dir to another place"
    )


def test_full_state_directory(app):
    """A full volume is noticed at the start; the error mentions that state can be rebuilt."""
    app.kafka.create_topics(app.source)
    (app.folder / "volume").mkdir()
    assert app.fails(1, state_dir="volume", prefix=in_own_namespace(app.folder / "volume", "size=64k")) == (
        f"Cannot write to the state directory {app.folder}/volume/{app.id}: No space left on device. To fix it: the volume is "
        "full: free space or make it larger; state is rebuilt from the changelogs, so the application's directory may be "
        "deleted while it is stopped"
    )


@pytest.mark.slow
def test_state_directory_that_fills_up(app):
    """A volume that fills up while the application runs ends it with the same advice."""
    app.kafka.create_topics(app.source)
    (app.folder / "volume").mkdir()
    prefix = in_own_namespace(app.folder / "volume", "size=2m")
    producer = Producer({"bootstrap.servers": app.kafka.bootstrap_servers, "queue.buffering.max.messages": 0})
    for _ in range(20_000):  # 80 MB of random text: RocksDB writes its first files at 16 MB
        producer.produce(app.source, NUMBER, secrets.token_bytes(2_000).hex().encode())
    assert producer.flush(PATIENCE_S) == 0
    line = app.fails(1, state_dir="volume", prefix=prefix, commit_interval_ms=100)
    assert re.search(r"No space left on device|volume is full", line), line
    assert str(app.folder / "volume") in line


def test_state_directory_without_permission(app):
    """The error says who lacks which permission, and how to grant it on Kubernetes."""
    app.kafka.create_topics(app.source)
    (app.folder / "volume").mkdir(mode=0o500)
    prefix = []
    if os.geteuid() == 0:  # root without its right to write everywhere
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        if shutil.which(prefix[0]) is None:
            pytest.skip("root has every permission")
    assert app.fails(1, state_dir="volume", prefix=prefix) == (
        f"Cannot create the state directory {app.folder}/volume/{app.id}: Permission denied. To fix it: give the user that "
        "runs the application write permission on it (on Kubernetes: fsGroup)"
    )
