"""Client settings: what Kafka Streams enforces, what users set under Java's names; and no password is ever shown."""

import logging
import threading
import weakref

import pytest
from confluent_kafka import TopicPartition
from tests.waiting import PATIENCE_S, wait_until

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import open_admin, open_consumer, open_producer
from millrace.kafka.security import parse_jaas

JAAS = 'org.apache.kafka.common.security.{}.{} required username="alice" password=\'s3;c"ret\';'
SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": JAAS.format("scram", "ScramLoginModule"),
}


def clients(**settings):
    """Return an application's client settings; underscores stand for dots."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    return of({"application.id": "app", "bootstrap.servers": "127.0.0.1:9092", **given})


def of(settings):
    """Return client settings of process p."""
    base = {"application.id": "app", "bootstrap.servers": "127.0.0.1:9092"}
    return ClientSettings(StreamsConfig.of({**base, **settings}), "p")


def test_names_are_those_of_kafka_streams():
    """Client ids and transactional ids have Java's form, so dashboards and ACLs keep working."""
    settings = clients(processing_guarantee="exactly_once_v2")
    assert settings.main_consumer(2)["client.id"] == "app-p-StreamThread-2-consumer"
    assert settings.restore_consumer(2)["client.id"] == "app-p-StreamThread-2-restore-consumer"
    assert settings.producer(2)["client.id"] == "app-p-StreamThread-2-producer"
    assert settings.admin()["client.id"] == "app-p-admin"
    assert settings.producer(2)["transactional.id"] == "app-p-2"
    assert clients(client_id="mine").producer(1)["client.id"] == "mine-StreamThread-1-producer"


def test_consumers_never_commit_reset_or_create_topics_by_themselves():
    """What Millrace does itself is always turned off in the consumers, whatever the user has set."""
    settings = of({"consumer.enable.auto.commit": "true", "auto.offset.reset": "latest"})
    consumer = settings.main_consumer(1)
    assert consumer["enable.auto.commit"] is False
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["allow.auto.create.topics"] is False
    assert consumer["enable.partition.eof"] is True
    assert settings.auto_offset_reset() == "latest"


def test_isolation_follows_the_guarantee(caplog):
    """Exactly-once reads committed records only, and logs that it overrides a setting."""
    assert clients().main_consumer(1)["isolation.level"] == "read_uncommitted"
    eos = of({"processing.guarantee": "exactly_once_v2", "consumer.isolation.level": "read_uncommitted"})
    assert eos.main_consumer(1)["isolation.level"] == "read_committed"
    assert "isolation.level" in caplog.text


def test_changelogs_are_read_without_aborted_records_under_every_guarantee():
    """Backfills write them in transactions, those of an at-least-once application too; other topics are read as in Java."""
    settings = clients(processing_guarantee="at_least_once")
    assert settings.restore_consumer(1)["isolation.level"] == "read_committed"
    assert settings.global_consumer()["isolation.level"] == "read_uncommitted"
    chosen = of({"restore.consumer.isolation.level": "read_uncommitted"})
    assert chosen.restore_consumer(1)["isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_requests_in_flight(guarantee):
    """A producer waits for each answer, as librdkafka can lose records otherwise, unless the user wants more requests at once."""
    assert clients(processing_guarantee=guarantee).producer(1)["max.in.flight.requests.per.connection"] == 1
    wanted = of({"processing.guarantee": guarantee, "producer.max.in.flight.requests.per.connection": "5"})
    assert wanted.producer(1)["max.in.flight.requests.per.connection"] == "5"


def test_exactly_once_producer():
    """The producer is transactional and sends soon; transactions may take 10 s, and it retries for as long as they may take."""
    producer = clients(processing_guarantee="exactly_once_v2", delivery_timeout_ms=2147483647).producer(1)
    assert producer["enable.idempotence"] is True
    assert producer["transaction.timeout.ms"] == 10_000
    assert producer["delivery.timeout.ms"] == 10_000
    assert producer["linger.ms"] == 10
    assert clients(processing_guarantee="at_least_once").producer(1)["linger.ms"] == 100
    assert of({"processing.guarantee": "exactly_once_v2", "producer.linger.ms": 50}).producer(1)["linger.ms"] == 50
    open_producer(producer)


@pytest.mark.parametrize(
    "contradiction",
    [{"producer.enable.idempotence": "false"}, {"producer.acks": "1"}, {"max.in.flight.requests.per.connection": 6}],
)
def test_settings_that_contradict_exactly_once_are_refused(contradiction):
    """Idempotence, acks and in-flight requests cannot be weakened under exactly-once."""
    with pytest.raises(ConfigError, match=next(iter(contradiction)).removeprefix("producer.")):
        of({"processing.guarantee": "exactly_once_v2", **contradiction}).producer(1)


def test_more_specific_prefixes_win():
    """Precedence: no prefix < consumer. < main.consumer.; other clients do not get prefixed settings."""
    settings = of(
        {
            "fetch.min.bytes": 1,
            "consumer.fetch.min.bytes": 2,
            "main.consumer.fetch.min.bytes": 3,
            "producer.linger.ms": 7,
        }
    )
    assert settings.main_consumer(1)["fetch.min.bytes"] == 3
    assert settings.restore_consumer(1)["fetch.min.bytes"] == 2
    assert settings.global_consumer()["fetch.min.bytes"] == 2
    assert settings.producer(1)["linger.ms"] == 7
    assert "fetch.min.bytes" not in settings.producer(1)


def test_consumers_prefetch_enough_for_a_long_poll():
    """Each consumer has one queue; the user's settings override the defaults, under Java's names too."""
    ours = of({})
    for settings in (ours.main_consumer(1), ours.restore_consumer(1), ours.global_consumer()):
        assert settings["queued.min.messages"] == 20_000
        assert settings["queued.max.messages.kbytes"] == 16_384
        assert settings["fetch.queue.backoff.ms"] == 5
    assert ours.main_consumer(1)["fetch.wait.max.ms"] == ours.global_consumer()["fetch.wait.max.ms"] == 100
    assert ours.restore_consumer(1)["fetch.wait.max.ms"] == 20
    theirs = of(
        {
            "consumer.fetch.queue.backoff.ms": 1,
            "consumer.fetch.max.wait.ms": 700,
            "restore.consumer.queued.min.messages": 5,
        }
    )
    assert (
        theirs.main_consumer(1)["fetch.queue.backoff.ms"] == theirs.restore_consumer(1)["fetch.queue.backoff.ms"] == 1
    )
    assert theirs.main_consumer(1)["fetch.wait.max.ms"] == theirs.restore_consumer(1)["fetch.wait.max.ms"] == 700
    assert theirs.main_consumer(1)["queued.min.messages"] == 20_000
    assert theirs.restore_consumer(1)["queued.min.messages"] == 5


def test_java_names_are_translated():
    """Keys and units are converted to librdkafka's."""
    settings = of(
        {
            "fetch.max.wait.ms": 50,
            "receive.buffer.bytes": -1,
            "producer.buffer.memory": 33554432,
            "max.request.size": 2000000,
        }
    )
    assert settings.main_consumer(1)["fetch.wait.max.ms"] == 50
    assert settings.main_consumer(1)["socket.receive.buffer.bytes"] == 0
    assert settings.producer(1)["queue.buffering.max.kbytes"] == 32768
    assert settings.producer(1)["message.max.bytes"] == 2000000


def test_java_only_keys_are_dropped_quietly_and_unknown_ones_with_a_warning(caplog):
    """default.api.timeout.ms has no counterpart, which is logged for debugging only; a misspelt key causes a warning."""
    caplog.set_level(logging.DEBUG, "millrace.kafka.clients")
    consumer = of({"default.api.timeout.ms": 1, "fetch.min.bites": 1}).main_consumer(1)
    assert not {"default.api.timeout.ms", "fetch.min.bites"} & consumer.keys()
    levels = {record.levelname: record.getMessage() for record in caplog.records}
    assert "default.api.timeout.ms" in levels["DEBUG"]
    assert "fetch.min.bites" in levels["WARNING"]


def test_bad_value_names_its_key():
    """A value that librdkafka does not accept raises a ConfigError with the key before any client is opened."""
    with pytest.raises(ConfigError, match=r"fetch\.min\.bytes"):
        of({"consumer.fetch.min.bytes": "many"}).main_consumer(1)


def test_membership_settings_come_from_the_main_consumer():
    """Session timeout, heartbeat and instance id may have a prefix; each thread is a separate static member."""
    membership = of(
        {"main.consumer.session.timeout.ms": 9000, "group.instance.id": "pod-0", "heartbeat.interval.ms": 700}
    ).membership(2)
    assert (membership.session_timeout_ms, membership.heartbeat_interval_ms) == (9000, 700)
    assert membership.instance_id == "pod-0-2"
    assert membership.group_id == "app"


def test_jaas_credentials_reach_both_clients():
    """User name and password are parsed as Java users write them, including quotes and semicolons."""
    settings = of(SCRAM)
    assert settings.main_consumer(1)["sasl.username"] == "alice"
    assert settings.main_consumer(1)["sasl.password"] == 's3;c"ret'
    assert settings.kafka_python(1)["sasl_plain_password"] == 's3;c"ret'
    assert settings.kafka_python(1)["sasl_mechanism"] == "SCRAM-SHA-512"


def test_no_printed_form_shows_a_credential():
    """Neither settings nor security values nor errors contain passwords, kafka-python's user names, or JAAS entries."""
    settings = of(SCRAM)
    printed = [repr(settings.main_consumer(1)), str(settings.producer(1)), f"{settings.kafka_python(1)}"]
    printed += [str(settings.admin()), repr(settings.security()), repr(settings.membership(1))]
    assert not [text for text in printed if "s3" in text or "JaasConfig" in text]
    with pytest.raises(ConfigError) as caught:
        of({**SCRAM, "sasl.jaas.config": 'nonsense password="s3cret"'}).admin()
    assert "s3cret" not in str(caught.value)


def test_login_module_must_fit_the_mechanism():
    """A PlainLoginModule with a SCRAM mechanism is an error before any broker refuses it."""
    with pytest.raises(ConfigError, match="PlainLoginModule"):
        of({**SCRAM, "sasl.jaas.config": JAAS.format("plain", "PlainLoginModule")}).admin()


def test_missing_credentials_are_an_error():
    """The error for SASL without user name and password names the keys to set."""
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config"):
        of({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}).admin()


def test_java_key_stores_name_the_pem_key_to_use():
    """The error for a JKS trust store, which cannot be read, names the key for a PEM file."""
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
        of({"security.protocol": "SSL", "ssl.truststore.location": "/x.jks"}).admin()
    with pytest.raises(ConfigError, match=r"ssl\.key\.location"):
        of({"security.protocol": "SSL", "ssl.keystore.location": "/x.jks"}).admin()


def test_pem_key_stores_are_supported():
    """Java's PEM stores are supported."""
    settings = of(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "",
        }
    ).admin()
    assert settings["ssl.ca.location"] == "/ca.pem"
    assert settings["ssl.endpoint.identification.algorithm"] == "none"


def test_jaas_options_are_parsed_with_either_quote():
    """Single quotes, double quotes, escapes and unquoted words are all in use."""
    text = 'com.example.PlainLoginModule required username=\'a b\' password="c\\"d" debug=true;'
    assert parse_jaas(text, "PLAIN") == {"username": "a b", "password": 'c"d', "debug": "true"}


def test_every_client_opens_with_its_settings():
    """Librdkafka accepts the settings of all clients under both guarantees."""
    for guarantee in ("at_least_once", "exactly_once_v2"):
        settings = of({**SCRAM, "processing.guarantee": guarantee})
        for consumer in (settings.main_consumer(1), settings.restore_consumer(1), settings.global_consumer()):
            open_consumer({**consumer, "log_level": 0}).close()
        open_producer({**settings.producer(1), "log_level": 0})
        open_admin({**settings.admin(), "log_level": 0})


def test_bootstrap_servers_are_required():
    """Client settings without brokers are an error."""
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        ClientSettings(StreamsConfig.of({"application.id": "a"}), "p")


def referring(tmp_path, **others):
    """Write a user name and password to files, and return client settings that refer to them."""
    (tmp_path / "username").write_text("alice")
    (tmp_path / "password").write_text("s3cret-in-file\n")
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": f"${{directory:{tmp_path}:username}}",
        "sasl.password": f"${{directory:{tmp_path}:password}}",
        **others,
    }


def test_values_in_files_reach_every_client_and_are_not_shown(tmp_path):
    """Both client libraries get the files' contents; nothing prints them, as the configuration keeps the reference."""
    settings = of(referring(tmp_path, **{"client.rack": f"${{directory:{tmp_path}:password}}"}))
    assert settings.main_consumer(1)["sasl.password"] == "s3cret-in-file"
    assert settings.producer(1)["sasl.username"] == "alice"
    assert settings.kafka_python()["sasl_plain_password"] == "s3cret-in-file"
    printed = f"{settings.main_consumer(1)!r} {settings.admin()} {settings.config!r} {settings.security()!r}"
    assert "s3cret-in-file" not in printed
    assert f"${{directory:{tmp_path}:password}}" in printed


def test_login_module_may_be_in_a_file(tmp_path):
    """A file may hold a whole sasl.jaas.config, as other operators write it."""
    (tmp_path / "jaas").write_text(JAAS.format("scram", "ScramLoginModule"))
    settings = of({**SCRAM, "sasl.jaas.config": f"${{directory:{tmp_path}:jaas}}"})
    assert settings.producer(1)["sasl.username"] == "alice"


def test_bad_value_from_a_file_is_not_shown(tmp_path):
    """The error names the setting but not the file's contents, which librdkafka would quote."""
    (tmp_path / "bytes").write_text("s3cret-in-file")
    for prefix in ("consumer.fetch.min.bytes", "consumer.isolation.level"):
        with pytest.raises(ConfigError) as caught:
            of({prefix: f"${{directory:{tmp_path}:bytes}}"}).main_consumer(1)
        assert prefix.removeprefix("consumer.") in str(caught.value)
        assert "s3cret-in-file" not in str(caught.value)


def test_settings_can_be_checked_without_the_files():
    """Where Secrets are not mounted, as for a plan, everything else is still checked."""
    nowhere = {"sasl.jaas.config": "${directory:/nowhere:jaas}", "consumer.fetch.min.bytes": "${file:/nowhere:x}"}
    config = StreamsConfig.of({"application.id": "app", "bootstrap.servers": "h:1", **SCRAM, **nowhere})
    with pytest.raises(ConfigError, match="/nowhere"):
        ClientSettings(config, "p").main_consumer(1)
    settings = ClientSettings(config, "p", resolve_references=False)
    assert settings.main_consumer(1)["sasl.mechanism"] == "SCRAM-SHA-512"


@pytest.mark.broker
def test_consumer_looks_up_new_topics_when_they_are_assigned(kafka, topic_factory, caplog, monkeypatch):
    """It does not wait until the library finds, once a second, that it does not know them."""
    monkeypatch.setattr("millrace.kafka.clients._LOOK_UP_S", PATIENCE_S)  # however slow the broker is
    settings = of({"bootstrap.servers": kafka.bootstrap_servers, "consumer.debug": "topic"}).main_consumer(1)
    topics = [topic_factory(f"new-{number}") for number in range(5)]
    consumer = open_consumer(settings)
    try:
        with caplog.at_level(logging.DEBUG, "millrace.kafka.librdkafka"):
            for topic in topics:
                consumer.incremental_assign([TopicPartition(topic, 0, 0)])
                while (message := consumer.poll(0.1)) is None or message.topic() != topic:
                    pass  # its end is read
    finally:
        consumer.close()
    found_unknown = [each for each in topics if f"Topic {each} metadata information unknown" in caplog.text]
    assert len(found_unknown) < len(topics), caplog.text  # the library may be looking at that very moment


def test_only_one_of_many_assignments_waits_for_brokers_that_do_not_answer(caplog):
    """A thread that starts many tasks, one after the other, would otherwise be held up by each of their topics."""
    consumer = open_consumer(clients(bootstrap_servers="127.0.0.1:1").main_consumer(1))
    try:
        with caplog.at_level(logging.INFO, "millrace.kafka.librdkafka"):
            for number in range(3):
                consumer.incremental_assign([TopicPartition(f"t{number}", 0, 0)])
    finally:
        consumer.close()
    late = [line.split()[0] for line in caplog.messages if "is looked up later" in line]
    assert late == ["t0"]


def test_producer_is_freed_in_another_thread():
    """Freeing it may take forever, and must not hold up who lets it go: the owner, or whoever collects garbage."""
    freed_in = []
    producer = open_producer(clients().producer(1))
    known = weakref.ref(producer, lambda _: freed_in.append(threading.get_ident()))
    del producer
    wait_until(lambda: freed_in, "it is freed")
    assert known() is None
    assert threading.get_ident() not in freed_in


NETWORK = {
    "connections.max.idle.ms": ("connections.max.idle.ms", 1234),
    "enable.metrics.push": ("enable.metrics.push", False),
    "metadata.max.age.ms": ("metadata.max.age.ms", 8001),
    "metadata.recovery.rebootstrap.trigger.ms": ("metadata.recovery.rebootstrap.trigger.ms", 555),
    "metadata.recovery.strategy": ("metadata.recovery.strategy", "none"),
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", 9001),
    "reconnect.backoff.max.ms": ("reconnect.backoff.max.ms", 62),
    "reconnect.backoff.ms": ("reconnect.backoff.ms", 61),
    "request.timeout.ms": ("socket.timeout.ms", 7001),
    "retry.backoff.ms": ("retry.backoff.ms", 77),
    "send.buffer.bytes": ("socket.send.buffer.bytes", 5001),
}
"""Kafka Streams' own settings of the network: librdkafka's name, and a value that is not the default."""


def test_network_settings_reach_every_client():
    """Kafka Streams passes its own settings of the network on to all clients, and so does Millrace."""
    settings = of({key: value for key, (_, value) in NETWORK.items()})
    expected = dict(NETWORK.values())
    for client in (
        settings.main_consumer(1),
        settings.restore_consumer(1),
        settings.global_consumer(),
        settings.producer(1),
        settings.admin(),
    ):
        assert {name: client[name] for name in expected} == expected
    membership, connection = settings.membership(1), settings.kafka_python(1)
    assert (membership.request_timeout_ms, membership.retry_backoff_ms, membership.metadata_max_age_ms) == (
        7001,
        77,
        8001,
    )
    assert (connection["connections_max_idle_ms"], connection["reconnect_backoff_ms"]) == (1234, 61)
