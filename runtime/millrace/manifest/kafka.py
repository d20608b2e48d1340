"""`spec.kafka`: the brokers, how to reach them, and settings under Kafka's own names.

Credentials are only ever named (`SecretReference`), or referred to as files, and a setting that would carry one is refused:
manifests are kept in repositories and read by many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from millrace.config import GroupProtocol
from millrace.manifest.fields import BootstrapServer, Url, sets_none_of
from millrace.manifest.lists import in_order
from millrace.manifest.model import ManifestModel, Rule, broken
from millrace.manifest.references import SecretReference, of_keys

OWNED_SETTINGS = {
    "acceptable.recovery.lag": "spec.standby.acceptableRecoveryLag",
    "application.id": "spec.applicationId",
    "application.server": "the operator, for each replica",
    "basic.auth.credentials.source": "spec.kafka.schemaRegistry.secretRef",
    "bootstrap.servers": "spec.kafka.bootstrapServers",
    "client.id": "the operator, for each replica",
    "commit.interval.ms": "spec.processing.commitInterval",
    "config.providers": "Millrace, which reads secrets from files",
    "consumer.group.id": "spec.applicationId",
    "consumer.group.instance.id": "the operator, for each replica",
    "consumer.session.timeout.ms": "spec.membership.sessionTimeout",
    "default.deserialization.exception.handler": "spec.processing.errorPolicy.deserialization",
    "default.production.exception.handler": "spec.processing.errorPolicy.production",
    "deserialization.exception.handler": "spec.processing.errorPolicy.deserialization",
    "enable.auto.commit": "Millrace, which commits offsets itself",
    "errors.dead.letter.queue.topic.name": "spec.processing.deadLetterTopic",
    "group.id": "spec.applicationId",
    "group.instance.id": "the operator, for each replica",
    "group.protocol": "spec.kafka.groupProtocol",
    "health.drain": "the operator, for each replica",
    "health.listener": "the operator, for each replica",
    "health.metrics": "spec.observability.metrics.podMonitor",
    "main.consumer.group.id": "spec.applicationId",
    "main.consumer.group.instance.id": "the operator, for each replica",
    "main.consumer.session.timeout.ms": "spec.membership.sessionTimeout",
    "max.warmup.replicas": "spec.standby.maxWarmups",
    "metrics.recording.level": "spec.observability.metrics.level",
    "num.standby.replicas": "spec.standby.replicas",
    "num.stream.threads": "spec.threads",
    "processing.exception.handler": "spec.processing.errorPolicy.processing",
    "processing.guarantee": "spec.processing.guarantee",
    "producer.transactional.id": "Millrace, for each thread",
    "production.exception.handler": "spec.processing.errorPolicy.production",
    "replication.factor": "spec.internalTopics.replicationFactor",
    "rocksdb.memory.fraction": "spec.storage.memoryFraction",
    "schema.registry.url": "spec.kafka.schemaRegistry.url",
    "session.timeout.ms": "spec.membership.sessionTimeout",
    "state.dir": "the operator, from spec.storage",
    "telemetry.otlp.headers.file": "spec.observability.otlp.headersSecretRef",
    "topic.min.insync.replicas": "spec.internalTopics.minInsyncReplicas",
    "transactional.id": "Millrace, for each thread",
}
"""Kafka keys that `spec.kafka.config` may not set, and what sets each."""

SECRET_SETTINGS = (
    "basic.auth.user.info",
    "sasl.jaas.config",
    "sasl.oauthbearer.client.secret",
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.password",
)
"""Kafka keys, with or without a client's prefix, whose values are secrets."""

_LONGEST_VALUE = 4096
SECURITY_PATTERN = "^((main[.]|restore[.]|global[.])?consumer[.]|producer[.]|admin[.])?(security[.]|sasl[.]|ssl[.])"
_SECURITY = re.compile(SECURITY_PATTERN)
_STAYS_FREE = ("ssl.cipher.suites", "ssl.endpoint.identification.algorithm", "ssl.key.password")


def _setting_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise broken(f'must be a string or an integer: put it in quotes, as "{str(value).lower()}"')
    if not isinstance(value, int | str):
        raise broken("must be a string or an integer: put it in quotes")
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        raise broken(f"must have at most {_LONGEST_VALUE} characters")
    return value


def _open_secrets(config: Mapping[str, Any]) -> list[str]:
    return [key for key, value in config.items() if key.endswith(SECRET_SETTINGS) and not str(value).startswith("${")]


def _list(texts: tuple[str, ...]) -> str:
    return f"[{', '.join(repr(text) for text in texts)}]"


SettingValue = Annotated[
    Any,
    BeforeValidator(_setting_value),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": _LONGEST_VALUE,
        }
    ),
]
KafkaConfig = Annotated[
    dict[str, SettingValue],
    Field(max_length=256),
    sets_none_of(OWNED_SETTINGS, "must not set what the manifest or the operator sets"),
    Rule(
        lambda config: not _open_secrets(config),
        f"self.all(key, !{_list(SECRET_SETTINGS)}.exists(name, key.endsWith(name)) || string(self[key]).startsWith('${{'))",
        "must not carry secrets, but name them in kafka.auth.secretRef, kafka.tls or kafka.schemaRegistry.secretRef, or be "
        "references to files of a mounted Secret as ${directory:FOLDER:FILE}",
        lambda config: ", ".join(_open_secrets(config)),
        ", ".join(SECRET_SETTINGS),
    ),
]
"""Kafka's dotted keys, for Kafka Streams or its clients; values are strings or integers, as the API server accepts them."""


class Tls(ManifestModel):
    """Encrypted connections to the brokers. Written as `{}`, the certificate authorities of the image are trusted."""

    ca_secret_ref: Annotated[SecretReference, of_keys("ca.crt")] | None = None
    """The Secret with the certificate authority of the brokers, in PEM: key `ca.crt`."""
    client_cert_secret_ref: Annotated[SecretReference, of_keys("tls.crt", "tls.key")] | None = None
    """The Secret with the client's certificate and key, in PEM: keys `tls.crt` and `tls.key`."""


Credentials = Annotated[SecretReference, of_keys("username", "password", "clientId", "clientSecret", "tokenEndpoint")]


class Auth(ManifestModel):
    """How the application proves to the brokers who it is."""

    type: Literal["scram-sha-512", "scram-sha-256", "plain", "oauthbearer", "mtls"]
    """The mechanism. `mtls` is the client certificate of `tls.clientCertSecretRef`."""
    secret_ref: (
        Annotated[SecretReference, of_keys("username", "password", "clientId", "clientSecret", "tokenEndpoint")] | None
    ) = None
    """The Secret with the credentials: keys `username` and `password`; for `oauthbearer` `clientId`, `clientSecret` and
    `tokenEndpoint`. Not for `mtls`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda auth: (auth.type == "mtls") != (auth.secret_ref is not None),
            "(self.type == 'mtls') != has(self.secretRef)",
            "secretRef must name the Secret with the credentials, unless type is mtls, which has none",
        ),
    )


class SchemaRegistry(ManifestModel):
    """The registry that serdes for Avro, Protobuf and JSON Schema ask if they are made without one of their own."""

    url: Url
    """Its URL."""
    secret_ref: Annotated[SecretReference, of_keys("username", "password")] | None = None
    """The Secret with the credentials for it: keys `username` and `password`."""


def is_security_setting(key: str) -> bool:
    """Return whether a setting, with or without a client's prefix, is about reaching the brokers securely.

    >>> is_security_setting("main.consumer.sasl.mechanism"), is_security_setting("linger.ms")
    (True, False)
    """
    return _SECURITY.match(key) is not None


def _leaves_security_to_the_fields(kafka: Kafka) -> bool:
    settings = [key for key in kafka.config if is_security_setting(key) and not key.endswith(_STAYS_FREE)]
    return not settings or (kafka.tls is None and kafka.auth is None)


class Kafka(ManifestModel):
    """The Kafka cluster and the settings of Kafka Streams and its clients."""

    bootstrap_servers: Annotated[
        tuple[BootstrapServer, ...],
        *in_order(64, least=1),
    ]
    """Addresses (host:port) of some of the brokers. `millrace dev up` does not use them but a Kafka of its own."""
    group_protocol: Annotated[GroupProtocol, Field(strict=False)] = GroupProtocol.CLASSIC
    """Who assigns tasks: the members (`classic`) or the broker (`streams`, KIP-1071)."""
    tls: Tls | None = None
    """Encrypted connections; plain ones if not given."""
    auth: Auth | None = None
    """How the application authenticates; not at all if not given."""
    config: KafkaConfig = Field(default_factory=dict)
    """Settings under Kafka's dotted names, for Kafka Streams or (with the prefixes `consumer.`, `producer.`, …) its clients.
    Values are strings or integers."""
    schema_registry: SchemaRegistry | None = None
    """The schema registry; none if not given."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda kafka: (
                kafka.auth is None or kafka.auth.type != "mtls" or bool(kafka.tls and kafka.tls.client_cert_secret_ref)
            ),
            "!has(self.auth) || self.auth.type != 'mtls' || (has(self.tls) && has(self.tls.clientCertSecretRef))",
            "tls.clientCertSecretRef must name the Secret with the client's certificate when auth.type is mtls",
        ),
        Rule(
            _leaves_security_to_the_fields,
            "(!has(self.tls) && !has(self.auth)) || !has(self.config) || self.config.all(key, "
            f"!key.matches('{SECURITY_PATTERN}') || "
            f"{_list(_STAYS_FREE)}.exists(free, key.endsWith(free)))",
            "config must not set security.protocol, sasl.* or ssl.* beside the fields tls and auth "
            f"(but {', '.join(_STAYS_FREE)})",
        ),
    )
