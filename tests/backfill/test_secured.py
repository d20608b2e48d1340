"""Backfills of applications whose brokers want certificates and passwords, do not allow everything, and assign the tasks."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from tests.backfill.broker_app import App, run_command
from tests.instance.support import has_failed
from tests.kafka.support import create_acl
from tests.operator.kafka.certificates import Authority
from tests.waiting import wait_until

from millrace.backfill.kafka_history import backfill_clients
from millrace.backfill.split_outputs import check_readable
from millrace.backfill.writer import Writer
from millrace.config import StreamsConfig
from millrace.dev._ports import free_ports
from millrace.dev.kafka import EmbeddedKafka
from millrace.errors import AuthorizationError, ConfigError, ProductionError
from millrace.instance.kafka_streams import KafkaStreams
from millrace.kafka.group_admin import GroupAdmin
from millrace.records import NO_HEADERS, OffsetAndMetadata, TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.slow]

HOST = "127.0.0.1"
USER, PASSWORD = "shop", "s3cret-9ab1"
MANIFEST = """\
apiVersion: streams.millrace.dev/v1alpha1
kind: StreamsApp
metadata: {{name: shop}}
spec:
  applicationId: {app.id}
  image: shop:1
  app: {{entrypoint: "shop:topology"}}
  kafka:
    bootstrapServers: ["{servers}"]
    groupProtocol: streams
    tls:
      caSecretRef: {{name: ca}}
      clientCertSecretRef: {{name: client}}
    auth:
      type: plain
      secretRef: {{name: login}}
"""


@pytest.fixture(scope="module")
def authority():
    """Give the certificate authority of the brokers and their clients."""
    return Authority()


@pytest.fixture(scope="module")
def secured(authority):
    """Give a Kafka with a listener for TLS with client certificates and passwords, and the address of that listener."""
    plain, controller, tls = free_ports(3, HOST)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    config = {
        **authority.broker_settings(plain, controller, tls),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.tls.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
        "group.streams.initial.rebalance.delay.ms": "0",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedKafka(ports=[plain], config=config) as kafka:
        yield kafka, f"{HOST}:{tls}"


@pytest.fixture
def app(secured, authority, tmp_path):
    """An application with forty records, its manifest, and its Secrets as a pod finds them."""
    kafka, servers = secured
    app = App(kafka)
    app.produce([f"k{number % 4}" for number in range(40)])
    app.write_project(tmp_path, by_value=True)
    (tmp_path / "streamsapp.yaml").write_text(MANIFEST.format(app=app, servers=servers))
    certificate, key = authority.issue("client")
    files = {
        "tls-ca/ca.crt": authority.pem,
        "tls-client/tls.crt": certificate,
        "tls-client/tls.key": key,
        "auth/username": USER,
        "auth/password": PASSWORD,
    }
    for name, text in files.items():
        path = tmp_path / "secrets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return app


@pytest.mark.thorough
def test_certificates_passwords_and_the_streams_protocol(app, tmp_path):
    """Driver and executors reach the brokers as the manifest says; a member of the brokers' group goes on from the result."""
    done = run_command(tmp_path, "--secrets-dir", "secrets", "--outputs", "last", "--master", "local[2]")
    assert done.returncode == 0, done.stdout
    assert app.table(app.changelog) == app.table(app.sink) == dict(app.counts)
    wait_until(lambda: sum(app.committed().values()) == 40, "the offsets", 60)
    app.produce(["k1", "new"])
    settings = {**app.settings, "group.protocol": "streams", "state.dir": str(tmp_path / "state")}
    streams = KafkaStreams(app.topology(by_value=True), {**settings, "commit.interval.ms": "100"})
    streams.start()
    try:
        wait_until(lambda: app.table(app.changelog) == dict(app.counts), "exact counts", 120)
        with GroupAdmin(app.clients) as group:
            assert group.describe().protocol.value == "streams"
    finally:
        streams.close(60, leave_group=True)


def test_a_wrong_secret(app, tmp_path):
    """The error says what to check, and shows no password; Spark is not needed for it, and nothing is written."""
    (tmp_path / "secrets" / "auth" / "password").write_text("wrong-77c1")
    done = run_command(tmp_path, "--secrets-dir", "secrets", "--progress", "json", PATH="")
    assert done.returncode == 1, done.stdout
    assert '"state": "Failed"' in done.stdout
    assert "sasl.mechanism=PLAIN" in done.stdout
    assert "Check security.protocol and the sasl.* and ssl.* settings" in done.stdout
    assert "wrong-77c1" not in done.stdout
    assert app.committed() == {}


def test_a_secret_that_lacks_a_key(app, tmp_path):
    """It is found before anything is started."""
    (tmp_path / "secrets" / "auth" / "password").unlink()
    done = run_command(tmp_path, "--secrets-dir", "secrets", PATH="")
    assert done.returncode == 2, done.stdout
    assert "Secret login of spec.kafka.auth.secretRef" in done.stdout
    assert "password" in done.stdout


@pytest.fixture
def guarded(secured):
    """Give the broker, which lets everybody do what no rule is about."""
    return secured[0]


def allow(kafka, topic, operation):
    """Let this test's user do something with a topic, and nothing else."""
    resource = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL
    create_acl(kafka.admin(), AclBinding(*resource, "User:ANONYMOUS", "*", operation, AclPermissionType.ALLOW))


def test_what_an_application_may_not_do(guarded):
    """Brokers take offsets only of those who may read, which one that writes need not; and all write in transactions."""
    guarded.create_topics("out", "free")
    admin = guarded.admin()
    allow(guarded, "out", AclOperation.WRITE)
    with pytest.raises(ConfigError, match=r"may not read out, but.*grant READ"):
        check_readable(admin, ["free", "out"])
    allow(guarded, "out", AclOperation.READ)
    check_readable(admin, ["free", "out"])
    pattern = ResourceType.TRANSACTIONAL_ID, "denied", ResourcePatternType.PREFIXED
    create_acl(admin, AclBinding(*pattern, "User:other", "*", AclOperation.WRITE, AclPermissionType.ALLOW))
    config = StreamsConfig.of({"application.id": "denied", "bootstrap.servers": guarded.bootstrap_servers})
    with pytest.raises(
        ConfigError, match=r"id denied-backfill\..*DESCRIBE and WRITE on transactional ids with the prefix denied"
    ):
        Writer(backfill_clients(config), "denied-backfill")


@pytest.mark.parametrize("then", ["more records", "offsets"])
def test_a_topic_that_may_only_be_read(guarded, then):
    """Brokers refuse its partitions, and no record is reported; starting again would not help, so nobody is told to."""
    topic = f"{then.replace(' ', '-')}-refused"
    guarded.create_topics(topic)
    allow(guarded, topic, AclOperation.READ)
    config = StreamsConfig.of({"application.id": "shop", "bootstrap.servers": guarded.bootstrap_servers})
    writer, target = Writer(backfill_clients(config), "shop-backfill"), TopicPartition(topic, 0)
    try:
        with writer.transaction():
            writer.send(target, [(b"key", b"value", 1, NO_HEADERS)])
            wait_until(lambda: has_failed(writer._producer.client), "the broker's refusal")
            with pytest.raises(ProductionError, match=rf"TOPIC_AUTHORIZATION_FAILED.*{topic}.* WRITE"):
                if then == "offsets":
                    writer.add_offsets("group", {target: OffsetAndMetadata(1)})
                else:
                    writer.send(target, [(b"key", b"value", 1, NO_HEADERS)])
    finally:
        writer.close()


def test_a_group_whose_offsets_may_not_be_committed(guarded):
    """What the user lacks is named, and not that the backfill should start again."""
    guarded.create_topics("any")
    resource = ResourceType.GROUP, "closed", ResourcePatternType.LITERAL
    rule = AclBinding(*resource, "User:ANONYMOUS", "*", AclOperation.DESCRIBE, AclPermissionType.ALLOW)
    create_acl(guarded.admin(), rule)
    config = StreamsConfig.of({"application.id": "shop", "bootstrap.servers": guarded.bootstrap_servers})
    writer, target = Writer(backfill_clients(config), "shop-backfill"), TopicPartition("any", 0)
    try:
        with writer.transaction(), pytest.raises(AuthorizationError, match=r"GROUP_AUTHORIZATION_FAILED.*READ on"):
            writer.commit("closed", {target: OffsetAndMetadata(1)})
    finally:
        writer.close()
