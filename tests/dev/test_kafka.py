"""The embedded Kafka starts, serves, survives what tests do to it, and never outlives its owner."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from tests.brokers import PASSWORDS, new_topic
from tests.waiting import PATIENCE_S, wait_until

from millrace.dev import _readiness
from millrace.dev._ports import free_ports
from millrace.dev._process import is_running
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import BrokerStartError, DevKafkaError

pytestmark = pytest.mark.broker
OTHER_HOST = "127.0.0.2"


def produce(bootstrap_servers, topic, *values, **config):
    """Write values to partition 0, and wait until all are acknowledged."""
    settings = {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "log_level": 0}
    producer = Producer({**settings, **config})
    failures = []
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def read(bootstrap_servers, topic, count, **config):
    """Read the first `count` values of partition 0."""
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": "reader",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = Consumer({**settings, **config})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []

    def take():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value())

    wait_until(lambda: len(values) == count, lambda: f"{count} values, only {values}", meanwhile=take, poll_s=0)
    consumer.close()
    return values


def pid_is_gone(pid):
    """Return whether a process has ended."""
    return not is_running(pid, "")


def test_produced_records_are_consumed(kafka, topic_factory):
    """Records that were produced can be consumed."""
    topic = topic_factory("words", partitions=2)

    produce(kafka.bootstrap_servers, topic, b"a", b"b")

    assert read(kafka.bootstrap_servers, topic, 2) == [b"a", b"b"]


def test_transactions_work_on_one_broker(kafka, topic_factory):
    """A single broker has a transaction log: a transaction commits and is read as committed."""
    topic = topic_factory("words")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    producer.commit_transaction(PATIENCE_S)

    assert read(kafka.bootstrap_servers, topic, 1, **{"isolation.level": "read_committed"}) == [b"a"]


def test_topics_are_not_created_by_use(kafka):
    """Automatic topic creation is off: a topic that nobody created stays unknown."""
    admin = kafka.admin()

    topic = admin.list_topics("never-created", timeout=PATIENCE_S).topics["never-created"]

    assert topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert "never-created" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_new_topics_can_be_written_at_once(kafka):
    """The leaders that the metadata name know that they lead, so a producer that tries only once succeeds."""
    for _ in range(10):
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, retries=0, enable_idempotence=False)
        name = f"new-{secrets.token_hex(6)}"
        names = [f"{name}-{number}" for number in range(6)]
        kafka.create_topics(*names, partitions=3)

        sent = [producer.send(name, b"a", partition=partition) for name in names for partition in range(3)]

        producer.flush(PATIENCE_S)
        producer.close()
        assert [future.exception for future in sent if future.failed()] == []


def test_topic_that_exists_is_not_created_again(kafka, topic_factory):
    """Creating a topic twice raises the broker's own error."""
    topic = topic_factory()

    with pytest.raises(KafkaException) as raised:
        kafka.create_topics(topic)

    assert raised.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS


def test_listens_on_the_loopback_address_only(kafka):
    """Every socket that a broker listens on is bound to 127.0.0.1."""
    listening = "0A"
    inodes = set()
    for descriptor in Path(f"/proc/{kafka.pids[0]}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{kafka.pids[0]}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == listening and fields[9] in inodes:
                addresses.add(fields[1].rpartition(":")[0])

    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert addresses


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """Yield a Kafka for which everything is given: directory, host, port, a proxy's port, and settings."""
    [port, proxy] = free_ports(2, OTHER_HOST)
    config = {"num.partitions": "7", "auto.create.topics.enable": "true"}
    kafka = EmbeddedKafka(
        directory=tmp_path_factory.mktemp("placed"),
        host=OTHER_HOST,
        ports=[port],
        advertised_ports=[proxy],
        config=config,
    )
    with kafka:
        yield kafka, port, proxy


def test_listens_and_is_reached_on_the_address_it_is_given(placed):
    """All listeners are on the given address of this machine, which a handle to the running cluster also knows."""
    kafka, port, _ = placed
    assert kafka.bootstrap_servers == f"{OTHER_HOST}:{port}"
    assert EmbeddedKafka.attach(kafka.directory).bootstrap_servers == kafka.bootstrap_servers
    brokers = kafka.admin().list_topics(timeout=PATIENCE_S).brokers.values()
    assert [broker.host for broker in brokers] == [OTHER_HOST]


def test_explicit_port_is_used(placed):
    """A broker listens on the given port, and a second one there fails with the reason."""
    kafka, port, _ = placed
    assert [broker.port for broker in kafka.admin().list_topics(timeout=PATIENCE_S).brokers.values()] == [port]

    with pytest.raises(BrokerStartError, match=rf"already in use: something listens on 127\.0\.0\.2:{port}"):
        EmbeddedKafka(host=OTHER_HOST, ports=[port]).start()


def test_clients_behind_a_proxy_get_its_port(placed):
    """A client of the listener behind a proxy learns the proxy's port; other clients still learn the broker's own."""
    kafka, _, proxy = placed
    [behind] = kafka.proxied_ports

    def told(bootstrap_servers):
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        return [f"{broker.host}:{broker.port}" for broker in admin.list_topics(timeout=PATIENCE_S).brokers.values()]

    assert told(f"{OTHER_HOST}:{behind}") == [f"{OTHER_HOST}:{proxy}"]
    assert told(kafka.bootstrap_servers) == [kafka.bootstrap_servers]


def test_config_overrides_the_defaults(placed):
    """A given setting reaches the broker."""
    kafka, _, _ = placed

    produce(kafka.bootstrap_servers, "made-by-use", b"a")

    assert len(kafka.admin().list_topics("made-by-use", timeout=PATIENCE_S).topics["made-by-use"].partitions) == 7


def test_directory_in_use_is_refused(placed):
    """A second Kafka in the same directory is refused with the first one's address, and stopping it changes nothing."""
    kafka, _, _ = placed
    second = EmbeddedKafka(directory=kafka.directory)

    with pytest.raises(DevKafkaError, match=f"already running in .*, at {kafka.bootstrap_servers}"):
        second.start()
    second.stop()

    assert EmbeddedKafka.attach(kafka.directory).pids == kafka.pids


def test_killed_broker_comes_back_with_its_data(placed):
    """After a kill the port is closed and the process is gone; after the restart the same address serves the same records."""
    kafka, _, _ = placed
    address, topic = kafka.bootstrap_servers, new_topic(kafka, "words")
    produce(address, topic, b"a")
    [pid] = kafka.pids

    kafka.kill()
    assert kafka.pids == ()
    assert pid_is_gone(pid)
    kafka.restart_broker()

    assert kafka.bootstrap_servers == address
    assert read(address, topic, 1) == [b"a"]


def test_data_in_a_given_directory_survives_restarts(own_kafka, tmp_path):
    """A Kafka restarted in its directory has its records: through the same object, a new one, or a handle from attaching."""
    kafka = own_kafka(directory=tmp_path)
    kafka.create_topics("words")
    produce(kafka.bootstrap_servers, "words", b"a")
    kafka.stop()
    kafka.start()
    produce(kafka.bootstrap_servers, "words", b"b")
    kafka.stop()

    again = own_kafka(directory=tmp_path)
    assert read(again.bootstrap_servers, "words", 2) == [b"a", b"b"]

    handle = EmbeddedKafka.attach(tmp_path)
    handle.kill()
    assert handle.pids == ()
    handle.restart_broker()
    assert read(handle.bootstrap_servers, "words", 2) == [b"a", b"b"]
    handle.stop()


def thread_states(pid):
    """Return the states of a process's threads (proc_pid_stat(5))."""
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}


def test_paused_broker_answers_again_when_resumed(breakable_kafka):
    """A paused broker does not respond but keeps its process; once resumed, it works as before."""
    kafka = breakable_kafka
    topic = new_topic(kafka, "words")
    admin = kafka.admin()
    admin.list_topics(timeout=PATIENCE_S)

    kafka.pause()
    assert thread_states(*kafka.pids) == {"T"}
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    assert len(kafka.pids) == 1
    kafka.resume()

    assert topic in admin.list_topics(timeout=PATIENCE_S).topics


def test_topic_is_created_by_a_broker_that_was_slow(breakable_kafka, monkeypatch):
    """A request to create a topic may take as long as a start, unlike other requests of that client."""
    monkeypatch.setitem(_readiness._CLIENT_CONFIG, "socket.timeout.ms", 1000)
    kafka = breakable_kafka
    kafka.pause()
    resume = threading.Timer(3.0, kafka.resume)
    resume.start()
    try:
        new_topic(kafka)
    finally:
        resume.join()


@pytest.mark.slow
def test_three_brokers_replicate_and_survive_a_kill(own_kafka):
    """With three brokers topics have three replicas, and the cluster works while one is down and after it is back."""
    kafka = own_kafka(brokers=3)
    kafka.create_topics("words", config={"min.insync.replicas": "2"})
    admin = kafka.admin()
    described = wait_until(
        lambda: admin.list_topics("words", timeout=PATIENCE_S).topics["words"].partitions,
        "the broker asked knows the topic",
    )
    [partition] = described.values()
    assert sorted(partition.replicas) == [1, 2, 3]
    produce(kafka.bootstrap_servers, "words", b"a")

    kafka.kill(partition.leader)
    produce(kafka.bootstrap_servers, "words", b"b")
    kafka.restart_broker(partition.leader)
    produce(kafka.bootstrap_servers, "words", b"c")

    assert len(kafka.pids) == 3
    assert read(kafka.bootstrap_servers, "words", 3) == [b"a", b"b", b"c"]


def test_password_listener_accepts_only_the_right_password(kafka):
    """The second listener accepts the right password and refuses a wrong one; the open listener stays open."""
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "quoted",
        "log_level": 0,
    }
    right = {**login, "bootstrap.servers": kafka.sasl_bootstrap_servers, "sasl.password": PASSWORDS["quoted"]}
    assert len(AdminClient(right).list_topics(timeout=PATIENCE_S).brokers) == 1
    assert len(kafka.admin().list_topics(timeout=PATIENCE_S).brokers) == 1

    errors = []
    refused = AdminClient({**right, "sasl.password": "wrong", "error_cb": errors.append})
    with pytest.raises(KafkaException):
        refused.list_topics(timeout=2)

    def told():
        refused.poll(0.1)
        return KafkaError._AUTHENTICATION in {error.code() for error in errors}

    wait_until(told, "an authentication error")


def test_without_users_there_is_no_password_listener(placed):
    """The error for a listener that was not configured says how to get it."""
    with pytest.raises(DevKafkaError, match="security=SaslPlain"):
        _ = placed[0].sasl_bootstrap_servers


def test_number_of_ports_must_be_that_of_the_brokers():
    """A number of ports that does not match the brokers is refused before anything starts."""
    with pytest.raises(DevKafkaError, match="3 brokers cannot listen on ports"):
        EmbeddedKafka(3, ports=[9092])


def test_number_of_advertised_ports_must_be_that_of_the_brokers():
    """A number of proxy ports that does not match the brokers is refused before anything starts."""
    with pytest.raises(DevKafkaError, match="3 brokers cannot be behind proxies"):
        EmbeddedKafka(3, advertised_ports=[9092])


def test_bad_setting_ends_the_start_with_the_brokers_reason(own_kafka):
    """If a broker ends at once, the start fails quickly with the broker's message."""
    with pytest.raises(BrokerStartError, match=r"(?s)node 1 ended with exit code 1.*num\.io\.threads"):
        own_kafka(config={"num.io.threads": "-1"})


def test_temporary_directory_is_removed(own_kafka):
    """A Kafka without a given directory leaves nothing behind, and starts empty again."""
    kafka = own_kafka()
    directory = kafka.directory
    kafka.create_topics("words")

    kafka.stop()
    assert not directory.exists()
    kafka.start()

    assert "words" not in kafka.admin().list_topics(timeout=PATIENCE_S).topics


def test_addresses_need_a_running_kafka():
    """Before the start there are no addresses."""
    with pytest.raises(DevKafkaError, match="call start"):
        _ = EmbeddedKafka().bootstrap_servers


def test_unknown_broker_is_refused(kafka):
    """Killing a broker that does not exist is an error."""
    with pytest.raises(DevKafkaError, match="no broker 2; the ids are 1"):
        kafka.kill(2)


def run_python(program, *arguments):
    """Start a Python program, and wait for its first line of output."""
    process = subprocess.Popen(
        [sys.executable, "-W", "default::ResourceWarning", "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return process, process.stdout.readline().strip()


def test_broker_ends_when_its_owner_is_killed():
    """If the process that started the broker is killed, the broker ends too, and its temporary directory is removed."""
    program = (
        "from millrace.dev.kafka import EmbeddedKafka; import time\n"
        "kafka = EmbeddedKafka().start(); print(kafka.pids[0], kafka.directory, flush=True); time.sleep(60)"
    )
    owner, line = run_python(program)
    pid, directory = line.split()
    assert is_running(int(pid), "")

    owner.kill()
    owner.communicate()

    wait_until(lambda: pid_is_gone(int(pid)), "the broker's end")
    wait_until(lambda: not Path(directory).exists(), "the directory's removal")


def test_detached_broker_outlives_its_starter_and_is_attached_to(tmp_path):
    """A detached Kafka keeps running when its starter ends, without a warning; another process finds it and stops it."""
    program = (
        "import sys, pathlib; from millrace.dev.kafka import EmbeddedKafka, SaslPlain\n"
        "with EmbeddedKafka(directory=pathlib.Path(sys.argv[1]), detach=True, security=SaslPlain({'a': 'b'})) as kafka:\n"
        "    kafka.create_topics('words'); print(kafka.bootstrap_servers, flush=True)"
    )
    starter, address = run_python(program, str(tmp_path))
    assert starter.communicate() == ("", "")
    assert starter.returncode == 0

    with EmbeddedKafka.attach(tmp_path) as kafka:
        assert kafka.bootstrap_servers == address
        assert kafka.sasl_bootstrap_servers != address
        assert "words" in kafka.admin().list_topics(timeout=PATIENCE_S).topics
    assert len(kafka.pids) == 1
    kafka.stop()

    assert kafka.pids == ()
    with pytest.raises(DevKafkaError, match="No Kafka is running in"):
        EmbeddedKafka.attach(tmp_path)


def test_starter_ends_without_a_warning_of_a_broker_that_belongs_to_another_process(tmp_path):
    """It is meant to outlive the starter, as is its watchdog: neither is a process that was forgotten."""
    program = (
        "import os, sys, pathlib; from millrace.dev.kafka import EmbeddedKafka\n"
        "EmbeddedKafka(directory=pathlib.Path(sys.argv[1]), owner_pid=os.getppid()).start()"
    )
    starter, line = run_python(program, str(tmp_path))
    assert starter.communicate() == ("", "")
    EmbeddedKafka.attach(tmp_path).stop()
    assert (starter.returncode, line) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_dev_kafka_prints_its_address_and_ends_on_a_signal(number):
    """`millrace dev kafka` prints Kafka's address, runs until a signal, and then exits cleanly with its broker."""
    program = "from millrace.cli.dev import kafka; kafka(port=0)"
    process, line = run_python(program)
    assert line.startswith("Kafka serves at 127.0.0.1:")
    address = line.removeprefix("Kafka serves at ")
    assert AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=PATIENCE_S).brokers

    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=1)
