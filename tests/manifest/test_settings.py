"""The Kafka Streams settings that a manifest produces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.manifest import wrong

from millrace.config import StreamsConfig
from millrace.durations import duration_ms
from millrace.errors import ConfigError
from millrace.instance.preflight import check_supported
from millrace.kafka.client_settings import ClientSettings
from millrace.manifest import StreamsApp, check, replica_name, to_group_settings, to_streams_config
from millrace.manifest.fields import quantity_value

SMALL = wrong.good("minimal")["StreamsApp"]


def app(**spec) -> StreamsApp:
    """Return a manifest with some fields of the spec replaced."""
    data = {
        "apiVersion": "streams.millrace.dev/v1alpha1",
        "kind": "StreamsApp",
        "metadata": {"name": "wc"},
        "spec": {
            "applicationId": "wc-v1",
            "image": "wc:1",
            "app": {"entrypoint": "wc:topology"},
            "kafka": {
                "bootstrapServers": ["k1:9092", "k2:9092"],
                "config": {"linger.ms": 5, "sasl.mechanism": "PLAIN"},
            },
            **spec,
        },
    }
    model, problems = check(data, StreamsApp)
    assert model, problems
    return model


def test_fields_become_kafkas_settings():
    """Every field that the runtime knows becomes a setting with Kafka's name."""
    model = app(threads=3, processing={"guarantee": "exactly_once_v2", "commitInterval": "250ms"})
    assert to_streams_config(model, 2, state_dir=Path("/state")) == {
        "application.id": "wc-v1",
        "bootstrap.servers": "k1:9092,k2:9092",
        "client.id": "wc-2",
        "commit.interval.ms": 250,
        "group.instance.id": "wc-2",
        "linger.ms": 5,
        "num.stream.threads": 3,
        "processing.guarantee": "exactly_once_v2",
        "sasl.mechanism": "PLAIN",
        "state.dir": "/state",
    }


@pytest.mark.parametrize(
    ("changes", "interval_ms"),
    [
        ({}, None),
        ({"standby": {"replicas": 1}}, 500),
        ({"standby": {"replicas": 1}, "kafka": {"config": {"heartbeat.interval.ms": 2_000}}}, 2_000),
        ({"standby": {"replicas": 1}, "kafka": {"groupProtocol": "streams"}}, None),
    ],
)
def test_members_learn_soon_that_standbys_are_to_take_over(changes, interval_ms):
    """In a classic group they learn it from the answer to a heartbeat, so these are sent more often."""
    document = wrong.good("minimal")["StreamsApp"]
    document["spec"] |= changes | {"kafka": document["spec"]["kafka"] | changes.get("kafka", {})}
    model, problems = check(document, StreamsApp)
    assert model, problems
    assert to_streams_config(model, 1).get("heartbeat.interval.ms") == interval_ms


def test_everything_becomes_kafkas_settings():
    """With every field set, each that the runtime knows becomes a setting with Kafka's name, and secrets only references."""
    model, _ = check(wrong.good("everything")["StreamsApp"], StreamsApp)
    assert model
    auth = "${directory:/secrets/auth:%s}"
    registry = "${directory:/secrets/schema-registry:%s}"
    assert to_streams_config(model, 1, secrets_dir=Path("/secrets")) == {
        "acceptable.recovery.lag": 500,
        "application.id": "orders-v1",
        "basic.auth.credentials.source": "USER_INFO",
        "basic.auth.user.info": f"{registry % 'username'}:{registry % 'password'}",
        "bootstrap.servers": "kafka-0.kafka:9093,10.0.0.1:9093,[::1]:9093",
        "client.id": "orders-1",
        "commit.interval.ms": 1500,
        "deserialization.exception.handler": "LogAndContinueExceptionHandler",
        "errors.dead.letter.queue.topic.name": "orders.failed",
        "group.protocol": "streams",
        "health.metrics": True,
        "linger.ms": 20,
        "max.warmup.replicas": 4,
        "metrics.recording.level": "DEBUG",
        "num.stream.threads": 2,
        "processing.exception.handler": "LogAndContinueProcessingExceptionHandler",
        "processing.guarantee": "exactly_once_v2",
        "producer.compression.type": "lz4",
        "production.exception.handler": "shop.errors:SkipLarge",
        "replication.factor": 3,
        "rocksdb.memory.fraction": 0.4,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.password": auth % "password",
        "sasl.username": auth % "username",
        "schema.registry.url": "https://registry.example:8081/apis/v1",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/secrets/tls-ca/ca.crt",
        "ssl.certificate.location": "/secrets/tls-client/tls.crt",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.key.location": "/secrets/tls-client/tls.key",
        "ssl.key.password": "${directory:/etc/orders/key:password}",
        "telemetry.otlp.headers.file": "/secrets/otlp/headers",
        "topic.compression.type": "zstd",
        "topic.min.insync.replicas": 2,
        "topic.segment.bytes": 104_857_600,
    }


def test_everything_is_a_valid_configuration():
    """`StreamsConfig` accepts all settings, and no name looks misspelt."""
    model, _ = check(wrong.good("everything")["StreamsApp"], StreamsApp)
    assert model
    config = StreamsConfig.of(to_streams_config(model, 0))
    assert config.unknown_keys() == {}
    assert config.rocksdb_memory_fraction == model.spec.storage.memory_fraction
    group = to_group_settings(model.spec)
    assert group["streams.num.standby.replicas"] == str(model.spec.standby.replicas)
    assert group["streams.session.timeout.ms"] == str(duration_ms(model.spec.membership.session_timeout or ""))


def test_unset_fields_leave_kafkas_defaults():
    """Unset fields add no settings: Kafka Streams' own defaults are not repeated."""
    model, _ = check(wrong.good("minimal")["StreamsApp"], StreamsApp)
    assert model
    assert to_streams_config(model) == {
        "application.id": "smallest",
        "bootstrap.servers": "kafka:9092",
        "num.stream.threads": 1,
        "processing.guarantee": "at_least_once",
    }


@pytest.mark.parametrize(
    ("tls", "auth", "expected"),
    [
        (None, "plain", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}),
        ({}, None, {"security.protocol": "SSL"}),
        ({}, "scram-sha-256", {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256"}),
        (
            {"clientCertSecretRef": {"name": "user"}},
            "mtls",
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": "/etc/millrace/secrets/tls-client/tls.crt",
                "ssl.key.location": "/etc/millrace/secrets/tls-client/tls.key",
            },
        ),
        (
            {"caSecretRef": {"name": "ca"}},
            "oauthbearer",
            {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": "/etc/millrace/secrets/tls-ca/ca.crt",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "${directory:/etc/millrace/secrets/auth:clientId}",
                "sasl.oauthbearer.client.secret": "${directory:/etc/millrace/secrets/auth:clientSecret}",
                "sasl.oauthbearer.token.endpoint.url": "${directory:/etc/millrace/secrets/auth:tokenEndpoint}",
            },
        ),
    ],
)
def test_tls_and_authentication_become_client_settings(tls, auth, expected):
    """TLS and authentication together determine the protocol; credentials refer to the files in a pod."""
    kafka: dict = {"bootstrapServers": ["k:1"]}
    kafka |= {} if tls is None else {"tls": tls}
    if auth is not None:
        kafka["auth"] = {"type": auth} if auth == "mtls" else {"type": auth, "secretRef": {"name": "user"}}
    settings = to_streams_config(app(kafka=kafka))
    security = {key: value for key, value in settings.items() if key.startswith(("security.", "ssl.", "sasl."))}
    login = {name: f"${{directory:/etc/millrace/secrets/auth:{name}}}" for name in ("username", "password")}
    if auth in {"plain", "scram-sha-256"}:
        expected = expected | {"sasl.username": login["username"], "sasl.password": login["password"]}
    assert security == expected


def test_other_brokers_replace_security_and_replication():
    """Brokers given as an argument, such as a single local one, also replace the fields for security and replication."""
    model, _ = check(wrong.good("everything")["StreamsApp"], StreamsApp)
    assert model
    settings = to_streams_config(model, bootstrap_servers=["127.0.0.1:1"])
    assert not [key for key in settings if key.startswith(("sasl.", "ssl.", "security."))]
    assert not {"replication.factor", "topic.min.insync.replicas"} & settings.keys()
    assert "${" not in str(settings.values()), "there are no files of secrets where the pods' brokers are not"


@pytest.mark.parametrize(
    "spec",
    [{"membership": {"static": False}}, {"kafka": {"bootstrapServers": ["k:1"], "groupProtocol": "streams"}}],
)
def test_membership_that_is_not_static_has_no_instance_id(spec):
    """Without static membership, which the streams protocol never has, a replica has a name but no fixed place in the group."""
    settings = to_streams_config(app(**spec), 0)
    assert settings["client.id"] == "wc-0"
    assert "group.instance.id" not in settings


def test_settings_of_fields_cannot_be_set_in_kafka_config():
    """Settings that fields map to are refused in kafka.config, so that no value is silently overridden."""
    model, _ = check(wrong.good("everything")["StreamsApp"], StreamsApp)
    assert model
    given = set(model.spec.kafka.config) | {f"topic.{key}" for key in model.spec.internal_topics.config}
    for key in to_streams_config(model, 0, state_dir=Path("/state")).keys() - given:
        kafka = {"bootstrapServers": ["k:1"], "config": {key: "x"}, "tls": {}}
        refused, problems = check({**SMALL, "spec": {**SMALL["spec"], "kafka": kafka}}, StreamsApp)
        assert refused is None, f"{key} is accepted"
        assert key in str(problems[0]) or key.startswith(("ssl.", "sasl.", "security."))


def test_the_result_is_a_valid_configuration():
    """`StreamsConfig` accepts the settings; with EOS the default commit interval is 100 ms."""
    config = StreamsConfig.of(to_streams_config(app(processing={"guarantee": "exactly_once_v2"}), 0))
    assert config.exactly_once
    assert config.commit_interval_ms == 100
    assert config.group_instance_id == "wc-0"
    assert config.client_settings["linger.ms"] == 5


def test_without_a_replica_nothing_is_a_member():
    """The settings that all replicas share contain no member's name."""
    assert not {"client.id", "group.instance.id", "state.dir"} & to_streams_config(app()).keys()


def test_other_brokers_come_without_the_manifests_security():
    """Brokers given as an argument replace the manifest's, including its passwords and certificates."""
    config = {"sasl.mechanism": "PLAIN", "consumer.ssl.ca.location": "/ca", "security.protocol": "SSL", "linger.ms": 5}
    model = app(kafka={"bootstrapServers": ["k:1"], "config": {**config, "main.consumer.sasl.username": "u"}})
    settings = to_streams_config(model, bootstrap_servers=["127.0.0.1:1"])
    assert settings["bootstrap.servers"] == "127.0.0.1:1"
    assert settings["linger.ms"] == 5
    assert not [key for key in settings if "sasl" in key or "ssl" in key or "security" in key]


def test_replicas_are_named_like_pods():
    """A replica's name is the resource's with its ordinal, as a StatefulSet names pods."""
    assert replica_name(app(), 11) == "wc-11"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1Ki", 1024), ("1.5Gi", 3 * 2**29), ("2G", 2 * 10**9), ("1E", 10**18), ("1e3", 1000), ("100m", 1)],
)
def test_quantities(text, value):
    """A quantity is read as Kubernetes reads it, rounded up to whole bytes."""
    assert quantity_value(text) == value


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_durations_add_up(hours, minutes, seconds, millis):
    """The parts of a duration are added up."""
    text = f"{hours}h{minutes}m{seconds}s{millis}ms"
    assert duration_ms(text) == ((hours * 60 + minutes) * 60 + seconds) * 1000 + millis


STRIMZI = {
    "bootstrapServers": ["k:1"],
    "tls": {"caSecretRef": {"name": "cluster-ca-cert"}, "clientCertSecretRef": {"name": "my-user"}},
    "auth": {"type": "scram-sha-512", "secretRef": {"name": "my-user"}},
}


def mounted(directory: Path, *files: str) -> Path:
    """Write files of secrets as in a pod, and return their folder."""
    for file in files:
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return directory


CA = "tls-ca/ca.crt"
TLS_PAIR = ("tls-client/tls.crt", "tls-client/tls.key")
USER_PAIR = ("tls-client/user.crt", "tls-client/user.key")


def test_secrets_of_a_kafka_user_are_found_as_strimzi_writes_them(tmp_path):
    """Certificate and key are `user.crt` and `user.key`; the user is from the login entry, or else the Secret's name."""
    secrets = mounted(tmp_path, CA, *USER_PAIR, "auth/password")
    settings = to_streams_config(app(kafka=STRIMZI), secrets_dir=secrets)
    assert settings["ssl.certificate.location"] == f"{tmp_path}/tls-client/user.crt"
    assert settings["ssl.key.location"] == f"{tmp_path}/tls-client/user.key"
    assert settings["sasl.username"] == "my-user"
    assert settings["sasl.password"] == f"${{directory:{tmp_path}/auth:password}}"
    mounted(tmp_path, "auth/sasl.jaas.config")
    settings = to_streams_config(app(kafka=STRIMZI), secrets_dir=secrets)
    assert settings["sasl.jaas.config"] == f"${{directory:{tmp_path}/auth:sasl.jaas.config}}"
    assert "sasl.username" not in settings
    mounted(tmp_path, "auth/username", *TLS_PAIR)
    settings = to_streams_config(app(kafka=STRIMZI), secrets_dir=secrets)
    assert settings["sasl.username"] == f"${{directory:{tmp_path}/auth:username}}"
    assert "sasl.jaas.config" not in settings
    assert settings["ssl.certificate.location"] == f"{tmp_path}/tls-client/tls.crt"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((CA, "auth/password"), "has neither the keys tls.crt and tls.key nor user.crt and user.key"),
        ((CA, *USER_PAIR), "Secret my-user of spec.kafka.auth.secretRef has no key password: add it"),
        ((*USER_PAIR, "auth/password"), "Secret cluster-ca-cert of spec.kafka.tls.caSecretRef has no key ca.crt"),
    ],
)
def test_missing_keys_of_a_mounted_secret_are_reported(tmp_path, files, told):
    """When it starts, a pod reports which key of which Secret is missing."""
    with pytest.raises(ConfigError, match=told):
        to_streams_config(app(kafka=STRIMZI), secrets_dir=mounted(tmp_path, *files))


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        (
            {"type": "aws-msk-iam", "region": "eu-central-1"},
            {"sasl.oauthbearer.method": "aws-msk-iam", "sasl.oauthbearer.aws.region": "eu-central-1"},
        ),
        (
            {"type": "entra-id", "scope": "api://kafka/.default"},
            {"sasl.oauthbearer.method": "entra-id", "sasl.oauthbearer.scope": "api://kafka/.default"},
        ),
        (
            {
                "type": "oauthbearer",
                "secretRef": {"name": "a"},
                "scope": "a b",
                "extensions": {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"},
                "tokenEndpointCaSecretRef": {"name": "b"},
            },
            {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.scope": "a b",
                "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
                "sasl.oauthbearer.client.id": "${directory:/etc/millrace/secrets/auth:clientId}",
                "sasl.oauthbearer.client.secret": "${directory:/etc/millrace/secrets/auth:clientSecret}",
                "sasl.oauthbearer.token.endpoint.url": "${directory:/etc/millrace/secrets/auth:tokenEndpoint}",
                "https.ca.location": "/etc/millrace/secrets/oauth-ca/ca.crt",
            },
        ),
    ],
)
def test_ways_to_get_tokens(auth, expected):
    """Each way becomes settings that the clients accept; cloud identities need no Secret."""
    settings = to_streams_config(app(kafka={"bootstrapServers": ["k:1"], "tls": {}, "auth": auth}))
    found = {key: value for key, value in settings.items() if key.startswith(("sasl.oauth", "https."))}
    assert found == expected
    assert (settings["security.protocol"], settings["sasl.mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    clients = ClientSettings(StreamsConfig.of(settings), "test", resolve_references=False)
    assert clients.security("admin.").oauth.method == expected["sasl.oauthbearer.method"]


BOUND = {"bindingSecretRef": {"name": "orders-kafka"}}


def bound(directory: Path, files: dict[str, str]) -> dict:
    """Return the broker settings of a pod whose binding has this Secret."""
    for name, text in files.items():
        (directory / "binding").mkdir(exist_ok=True)
        (directory / "binding" / name).write_text(text)
    settings = to_streams_config(app(kafka=BOUND), secrets_dir=directory)
    return {key: value for key, value in settings.items() if key.startswith(("boot", "security", "sasl", "ssl"))}


STRIMZI_ACCESS = {
    **dict.fromkeys(("bootstrap.servers", "bootstrap-servers", "bootstrapServers"), "a:9093, b:9093"),
    **dict.fromkeys(("security.protocol", "securityProtocol"), "SASL_SSL"),
    **dict.fromkeys(("sasl.mechanism", "saslMechanism"), "SCRAM-SHA-512"),
    "type": "kafka",
    "provider": "strimzi",
    "username": "u",
    "password": "p",
    "ssl.truststore.crt": "CA",
    "sasl.jaas.config": "…",
}


def test_a_binding_says_where_the_brokers_are(tmp_path):
    """The Secrets of Strimzi's access operator are understood; the password stays a reference to its file."""
    directory = tmp_path / "binding"
    assert bound(tmp_path, STRIMZI_ACCESS) == {
        "bootstrap.servers": "a:9093,b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": f"${{directory:{directory}:username}}",
        "sasl.password": f"${{directory:{directory}:password}}",
        "ssl.ca.location": f"{directory}/ssl.truststore.crt",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"bootstrap-servers": "k:1"}, {"security.protocol": "PLAINTEXT"}),
        ({"bootstrap-servers": "k:1", "ca.crt": "CA"}, {"security.protocol": "SSL"}),
        (
            {"bootstrapServers": "k:1", "user": "u", "password": "p", "sasl-mechanism": "plain"},
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
        ),
        (
            {"bootstrapServers": "k:1", "ssl.keystore.crt": "C", "ssl.keystore.key": "K", "securityProtocol": "SSL"},
            {"security.protocol": "SSL"},
        ),
    ],
)
def test_binding_without_a_protocol_never_sends_a_password_unencrypted(tmp_path, files, expected):
    """Without a protocol in the Secret it follows from the other keys; a password is always sent over TLS."""
    found = bound(tmp_path, files)
    assert {key: found[key] for key in ("security.protocol", "sasl.mechanism") if key in found} == expected
    assert found["bootstrap.servers"] == "k:1"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"username": "u"}, "has no key bootstrap-servers or bootstrapServers or bootstrap.servers"),
        ({"bootstrapServers": "kafka"}, "has 'kafka' under the key bootstrapServers, which is not host:port"),
        ({"bootstrapServers": "k:1", "type": "postgresql"}, "is a binding of type postgresql, not kafka"),
        (
            {"bootstrapServers": "k:1", "securityProtocol": "TLS"},
            "has 'TLS' under the key securityProtocol, which must be",
        ),
        ({"bootstrapServers": "k:1", "username": "u", "password": "p"}, "has no key sasl-mechanism"),
        ({"bootstrapServers": "k:1", "username": "u", "saslMechanism": "PLAIN"}, "has no key password"),
        ({"bootstrapServers": "k:1", "securityProtocol": "SASL_SSL", "saslMechanism": "PLAIN"}, "has no key username"),
    ],
)
def test_incomplete_binding_is_reported(tmp_path, files, told):
    """The error names the Secret and what it lacks."""
    with pytest.raises(ConfigError, match=f"Secret orders-kafka of spec.kafka.bindingSecretRef {told}"):
        bound(tmp_path, files)


def test_a_plan_needs_no_binding():
    """Without secrets, as in a plan Job, the addresses are left out."""
    assert "bootstrap.servers" not in to_streams_config(app(kafka=BOUND))
    assert to_streams_config(app(kafka=BOUND), bootstrap_servers=["k:1"])["bootstrap.servers"] == "k:1"


def test_with_the_streams_protocol_standbys_and_timeouts_are_the_groups():
    """Members refuse num.standby.replicas then; what the manifest leaves open has the brokers' default."""
    kafka = {"bootstrapServers": ["k:9092"], "groupProtocol": "streams", "config": {"heartbeat.interval.ms": 6000}}
    model = app(kafka=kafka, standby={"replicas": 2}, membership={"sessionTimeout": "50s"})
    config = StreamsConfig.of(to_streams_config(model, 0, state_dir=Path("/state")))
    assert (config.num_standby_replicas, config.group_instance_id) == (0, None)
    check_supported(config, ClientSettings(config, "client"))
    assert to_group_settings(model.spec) == {
        "streams.num.standby.replicas": "2",
        "streams.session.timeout.ms": "50000",
        "streams.heartbeat.interval.ms": "6000",
    }
    plain = app(kafka={"bootstrapServers": ["k:9092"], "groupProtocol": "streams"})
    assert to_group_settings(plain.spec) == {
        "streams.num.standby.replicas": "0",
        "streams.session.timeout.ms": None,
        "streams.heartbeat.interval.ms": None,
    }
    assert to_group_settings(app(standby={"replicas": 2}).spec) == {}


def test_labels_of_the_node_become_rack_and_tags():
    """The rack is `client.rack` and a tag, each other label a tag; copies are kept apart by all that the node has."""
    manifest = app(
        racks={"tags": {"hall": "example.com/hall", "floor": "example.com/floor", "long": "example.com/long"}}
    )
    labels = {"topology.kubernetes.io/zone": "a", "example.com/hall": "7", "example.com/long": "x" * 31, "other": "1"}
    settings = to_streams_config(manifest, 0, node_labels=labels)
    assert {key: value for key, value in settings.items() if "rack" in key or "tag" in key} == {
        "client.rack": "a",
        "client.tag.rack": "a",
        "client.tag.hall": "7",
        "rack.aware.assignment.tags": "rack,hall",
    }
    config = StreamsConfig.of(settings)
    assert (config.rack_aware_assignment_tags, config.unknown_keys()) == (("rack", "hall"), {})
    assert not {key for key in to_streams_config(manifest, 0) if "rack" in key}
    assert not {key for key in to_streams_config(app(), 0, node_labels=labels) if "rack" in key}
