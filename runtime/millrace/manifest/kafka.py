"""`spec.kafka` and `spec.internalTopics`: the brokers, how to reach them, settings under Kafka's names, internal topics.

Credentials are only named (`SecretReference`) or referred to as files, and a setting that would contain one is refused,
because manifests are kept in repositories and read by many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from millrace.config import GroupProtocol
from millrace.kafka.security import CLOUD_IDENTITIES
from millrace.manifest.base_model import ManifestModel
from millrace.manifest.fields import (
    BootstrapServer,
    LocalReference,
    SecretReference,
    Url,
    atomic_list,
    cel_list,
    of_keys,
    sets_none_of,
    text,
)
from millrace.manifest.rules import Rule, rule_error

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
SECURITY_PATTERN = (
    "^((main[.]|restore[.]|global[.])?consumer[.]|producer[.]|admin[.])?(security[.]|sasl[.]|ssl[.]|https[.])"
)
_SECURITY = re.compile(SECURITY_PATTERN)
_STAYS_FREE = ("ssl.cipher.suites", "ssl.endpoint.identification.algorithm", "ssl.key.password")


def _setting_value(value: object) -> object:
    if isinstance(value, bool):
        raise rule_error(f'must be a string or an integer: put it in quotes, as "{str(value).lower()}"')
    if not isinstance(value, int | str):
        raise rule_error("must be a string or an integer: put it in quotes")
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        raise rule_error(f"must have at most {_LONGEST_VALUE} characters")
    return value


def _open_secrets(config: Mapping[str, object]) -> list[str]:
    return [key for key, value in config.items() if key.endswith(SECRET_SETTINGS) and not str(value).startswith("${")]


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
        # Kubernetes 1.30 would estimate `string(self[key])` at more than it allows.
        f"self.all(key, !{cel_list(SECRET_SETTINGS)}.exists(name, key.endsWith(name)) || "
        "(type(self[key]) == string && self[key].startsWith('${')))",
        "must not contain secrets: name them in kafka.auth.secretRef, kafka.tls or kafka.schemaRegistry.secretRef, or use "
        "references to files of a mounted Secret, ${directory:FOLDER:FILE}",
        lambda config: ", ".join(_open_secrets(config)),
        ", ".join(SECRET_SETTINGS),
    ),
]
"""Kafka's dotted keys, for Kafka Streams or its clients. Values are strings or integers, which the API server accepts."""


class Tls(ManifestModel):
    """Encrypted connections to the brokers. With `{}`, the certificate authorities of the image are trusted."""

    ca_secret_ref: Annotated[SecretReference, of_keys("ca.crt")] | None = None
    """The Secret with the brokers' certificate authority, in PEM: key `ca.crt`."""
    client_cert_secret_ref: Annotated[SecretReference, of_keys("tls.crt", "tls.key")] | None = None
    """The Secret with the client's certificate and key, in PEM: keys `tls.crt` and `tls.key`, or `user.crt` and `user.key`, as
    Strimzi names them for a `KafkaUser`."""


_WITHOUT_SECRET = ("mtls", *CLOUD_IDENTITIES)

Scope = Annotated[
    str,
    *text(
        r"^[!#-\[\]-~]+( [!#-\[\]-~]+)*$", "must be one or more scopes, separated by single spaces", least=1, most=1024
    ),
]
Region = Annotated[
    str, *text(r"^[a-z]+(-[a-z]+)+-[0-9]+$", "must be a region of AWS, for example `eu-central-1`", most=64)
]
ExtensionValue = Annotated[
    str, *text(r"^[!-+.-~-]+$", "must consist of printable characters, without spaces and commas", least=1, most=1024)
]
Extensions = Annotated[
    dict[str, ExtensionValue],
    Field(max_length=16),
    Rule(
        lambda extensions: all(re.fullmatch("[A-Za-z]+", key) and key != "auth" for key in extensions),
        "self.all(key, key.matches('^[A-Za-z]+$') && key != 'auth')",
        "must have keys of letters only, and none that is `auth`",
    ),
]


class Auth(ManifestModel):
    """How the application authenticates to the brokers."""

    type: Literal["scram-sha-512", "scram-sha-256", "plain", "oauthbearer", "mtls", "aws-msk-iam", "entra-id"]
    """The mechanism. `mtls` uses the client certificate of `tls.clientCertSecretRef`; `aws-msk-iam` and `entra-id` use the
    identity that the pods' service account has in AWS or Azure, as an OAuth token."""
    secret_ref: (
        Annotated[SecretReference, of_keys("username", "password", "clientId", "clientSecret", "tokenEndpoint")] | None
    ) = None
    """The Secret with the credentials: keys `username` and `password`; for `oauthbearer` `clientId`, `clientSecret` and
    `tokenEndpoint`. Not for `mtls`, `aws-msk-iam` and `entra-id`. With SCRAM it may be the Secret of a Strimzi `KafkaUser`,
    without `username`: the user is then taken from its `sasl.jaas.config`, or else is the name of the Secret."""
    scope: Scope | None = None
    """The scope of the tokens, for `oauthbearer` and `entra-id`; separate several with spaces. The default for
    `entra-id` is the Event Hubs namespace: `https://<host of the first bootstrap server>/.default`."""
    extensions: Extensions = Field(default_factory=dict)
    """Extensions sent to the brokers with the token (RFC 7628), for `oauthbearer`: for Confluent Cloud `logicalCluster` and
    `identityPoolId`."""
    token_endpoint_ca_secret_ref: Annotated[SecretReference, of_keys("ca.crt")] | None = None
    """The Secret with the certificate authority of the token endpoint, in PEM, for `oauthbearer`: key `ca.crt`. By
    default the authorities of the image are trusted."""
    region: Region | None = None
    """The AWS region of the cluster, for `aws-msk-iam`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda auth: (auth.type in _WITHOUT_SECRET) != (auth.secret_ref is not None),
            f"(self.type in {cel_list(_WITHOUT_SECRET)}) != has(self.secretRef)",
            "secretRef must name the Secret with the credentials, unless type is mtls, aws-msk-iam or entra-id, which need none",
        ),
        Rule(
            lambda auth: auth.scope is None or auth.type in {"oauthbearer", "entra-id"},
            "!has(self.scope) || self.type in ['oauthbearer', 'entra-id']",
            "scope must not be given unless type is oauthbearer or entra-id",
        ),
        Rule(
            lambda auth: auth.type == "oauthbearer" or not (auth.extensions or auth.token_endpoint_ca_secret_ref),
            "self.type == 'oauthbearer' || (!has(self.tokenEndpointCaSecretRef) && "
            "(!has(self.extensions) || size(self.extensions) == 0))",
            "extensions and tokenEndpointCaSecretRef must not be given unless type is oauthbearer",
        ),
        Rule(
            lambda auth: (auth.type == "aws-msk-iam") == (auth.region is not None),
            "(self.type == 'aws-msk-iam') == has(self.region)",
            "region must be given when type is aws-msk-iam, and only then",
        ),
    )


class SchemaRegistry(ManifestModel):
    """The schema registry for serdes of Avro, Protobuf and JSON Schema that are not given one in the program."""

    url: Url
    """Its URL."""
    secret_ref: Annotated[SecretReference, of_keys("username", "password")] | None = None
    """The Secret with the credentials for it: keys `username` and `password`."""


def is_security_setting(key: str) -> bool:
    """Return whether a setting, with or without a client's prefix, is about secure connections to the brokers.

    >>> is_security_setting("main.consumer.sasl.mechanism"), is_security_setting("linger.ms")
    (True, False)
    """
    return _SECURITY.match(key) is not None


class Kafka(ManifestModel):
    """The Kafka cluster and the settings of Kafka Streams and its clients."""

    bootstrap_servers: Annotated[
        tuple[BootstrapServer, ...],
        *atomic_list(64, least=1),
    ] = ()
    """Addresses (host:port) of some of the brokers. `millrace dev up` ignores them and uses its own Kafka."""
    binding_secret_ref: LocalReference | None = None
    """A Secret of the Service Binding Specification, instead of `bootstrapServers`, `tls` and `auth`: it says where the
    brokers are and how to reach them. Pods pick up a changed password; other changes take effect when they restart."""
    group_protocol: Annotated[GroupProtocol, Field(strict=False)] = GroupProtocol.CLASSIC
    """Who assigns tasks: the members (`classic`) or the broker (`streams`, KIP-1071). To change it in a running application, all
    pods are stopped and started again."""
    tls: Tls | None = None
    """Encrypted connections; unencrypted if not given."""
    auth: Auth | None = None
    """How the application authenticates; without authentication if not given."""
    config: KafkaConfig = Field(default_factory=dict)
    """Settings under Kafka's dotted names, for Kafka Streams or (with the prefixes `consumer.`, `producer.`, …) its clients.
    Values are strings or integers."""
    schema_registry: SchemaRegistry | None = None
    """The schema registry; none if not given."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda kafka: bool(kafka.bootstrap_servers) != (kafka.binding_secret_ref is not None),
            "has(self.bootstrapServers) != has(self.bindingSecretRef)",
            "bootstrapServers must be given: addresses (host:port) of some of the brokers; or else bindingSecretRef",
        ),
        Rule(
            lambda kafka: kafka.binding_secret_ref is None or (kafka.tls is None and kafka.auth is None),
            "!has(self.bindingSecretRef) || (!has(self.tls) && !has(self.auth))",
            "tls and auth must not be given with bindingSecretRef, whose Secret says how to reach the brokers",
        ),
        Rule(
            lambda kafka: (
                kafka.auth is None or kafka.auth.type != "mtls" or bool(kafka.tls and kafka.tls.client_cert_secret_ref)
            ),
            "!has(self.auth) || self.auth.type != 'mtls' || (has(self.tls) && has(self.tls.clientCertSecretRef))",
            "tls.clientCertSecretRef must name the Secret with the client's certificate when auth.type is mtls",
        ),
        Rule(
            lambda kafka: kafka.auth is None or kafka.auth.type not in CLOUD_IDENTITIES or kafka.tls is not None,
            f"!has(self.auth) || !(self.auth.type in {cel_list(CLOUD_IDENTITIES)}) || has(self.tls)",
            "tls must be given when auth.type is aws-msk-iam or entra-id, to keep the tokens secret; `tls: {}` is enough",
        ),
        Rule(
            lambda kafka: (
                (kafka.tls is None and kafka.auth is None and kafka.binding_secret_ref is None)
                or not any(is_security_setting(key) and not key.endswith(_STAYS_FREE) for key in kafka.config)
            ),
            "(!has(self.tls) && !has(self.auth) && !has(self.bindingSecretRef)) || !has(self.config) || self.config.all(key, "
            f"!key.matches('{SECURITY_PATTERN}') || "
            f"{cel_list(_STAYS_FREE)}.exists(free, key.endsWith(free)))",
            "config must not set security.protocol, sasl.*, ssl.* or https.* if tls, auth or bindingSecretRef is given "
            f"(but {', '.join(_STAYS_FREE)})",
        ),
    )


OWNED_TOPIC_SETTINGS = {
    "cleanup.policy": "the topology, for each topic",
    "min.insync.replicas": "spec.internalTopics.minInsyncReplicas",
    "replication.factor": "spec.internalTopics.replicationFactor",
}
"""Settings of topics that `spec.internalTopics.config` may not set, and what sets each."""


TopicConfig = Annotated[
    dict[str, SettingValue],
    Field(max_length=64),
    sets_none_of(OWNED_TOPIC_SETTINGS, "must not set what other fields or the topology set"),
]
"""Settings of topics under Kafka's names, such as `segment.bytes`."""


class InternalTopics(ManifestModel):
    """The changelog and repartition topics, which hold the application's state and the records it repartitions."""

    management: Literal["Admin", "VerifyOnly"] = "Admin"
    """`Admin`: the operator creates them. `VerifyOnly`: somebody else does, and the operator reports what is missing."""
    replication_factor: Annotated[int, Field(ge=1, le=32_767, json_schema_extra={"format": "int32"})] | None = None
    """How many brokers hold each partition; the brokers' default if not given."""
    min_insync_replicas: Annotated[int, Field(ge=1, le=32_767, json_schema_extra={"format": "int32"})] | None = None
    """How many of these must have a record before it counts as written; the brokers' default if not given."""
    config: TopicConfig = Field(default_factory=dict)
    """Further settings of these topics, under Kafka's names. A store's own settings for its topic take precedence."""
    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """Whether they are deleted with the StreamsApp. `spec.deletionPolicy: Purge` deletes them in any case."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda topics: (
                topics.replication_factor is None
                or topics.min_insync_replicas is None
                or topics.min_insync_replicas <= topics.replication_factor
            ),
            "!has(self.replicationFactor) || !has(self.minInsyncReplicas) || "
            "self.minInsyncReplicas <= self.replicationFactor",
            "minInsyncReplicas must not be more than replicationFactor, or nothing could be written",
        ),
    )
