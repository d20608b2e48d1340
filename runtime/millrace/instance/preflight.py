"""Checks before the first thread starts, so that problems are reported at once and clearly.

They cover settings that this version does not support; brokers and credentials; input topics; internal topics, which are
created if missing; and the dead-letter topic, which must exist before it is needed.
"""

from __future__ import annotations

import logging
from typing import Final

from confluent_kafka.admin import AdminClient

from millrace.assignment import HostInfo, select_assignor
from millrace.config import GroupProtocol, StreamsConfig
from millrace.engine.error_handling import check_handler
from millrace.engine.record_queue import default_timestamp_extractor
from millrace.errors import AuthorizationError, ConfigError, MissingSinkTopicError
from millrace.instance.membership import may_create_topics
from millrace.kafka.admin import appears_on_demand, may_write
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.client_supplier import client_supplier
from millrace.kafka.clients import ClosableAdmin
from millrace.kafka.connection_check import check_connection
from millrace.kafka.internal_topics import partition_counts, provision
from millrace.kafka.membership.streams.topology import describe_topology
from millrace.serdes.resolve import default_key_serde, default_value_serde
from millrace.state.rocksdb_options import config_setter
from millrace.topology.physical_topology import BuiltTopology

__all__ = ["check_cluster", "check_settings", "check_supported"]

_log = logging.getLogger(__name__)
_HANDLERS: Final = (
    "deserialization.exception.handler",
    "default.deserialization.exception.handler",
    "processing.exception.handler",
    "production.exception.handler",
    "default.production.exception.handler",
)
_MOST_TAGS: Final = 5
_LONGEST_TAG: Final = 20
_LONGEST_TAG_VALUE: Final = 30


def check_settings(config: StreamsConfig) -> None:
    """Check the settings as far as possible without brokers and without the files they refer to.

    Raises:
        ConfigError: a client rejects a setting, or two settings contradict each other.
    """
    given = config if config.bootstrap_servers else config.model_copy(update={"bootstrap_servers": ("localhost:9092",)})
    settings = ClientSettings(given, "check", resolve_references=False)
    check_supported(config, settings)
    for read in (settings.main_consumer, settings.restore_consumer, settings.producer, settings.membership):
        read(1)
    settings.global_consumer()
    settings.admin()
    oauth = settings.security("consumer.", "main.consumer.").oauth
    if oauth is not None:
        oauth.check_served()


def check_supported(config: StreamsConfig, settings: ClientSettings) -> None:
    """Check that the settings are supported and consistent.

    Raises:
        ConfigError: two settings contradict each other.
    """
    _check_code(config)
    _check_client_tags(config)
    if config.application_server:
        try:
            HostInfo.parse(config.application_server)
        except ValueError as error:
            raise ConfigError(f"application.server must be host:port: {error}") from None
    if config.group_protocol is GroupProtocol.STREAMS:
        _check_streams_protocol(config, settings)
    if config.exactly_once:
        timeout_ms = settings.transaction_timeout_ms()
        if config.commit_interval_ms > timeout_ms:
            raise ConfigError(
                f"commit.interval.ms={config.commit_interval_ms} is longer than producer.transaction.timeout.ms={timeout_ms}: "
                "every transaction would time out. Make the interval shorter or the time-out longer"
            )


def _check_code(config: StreamsConfig) -> None:
    """Check the settings that name code; otherwise threads and tasks would fail on them later."""
    for key in _HANDLERS:
        check_handler(getattr(config, key.replace(".", "_")), key)
    default_timestamp_extractor(config)
    default_key_serde(config)
    default_value_serde(config)
    select_assignor(config.task_assignor_class)
    client_supplier(config)
    config_setter(config)


def _check_client_tags(config: StreamsConfig) -> None:
    """Check the client tags, by which the assignor tells clients apart, with Kafka Streams' limits (KIP-708)."""
    tags, wanted = config.prefixed("client.tag."), config.rack_aware_assignment_tags
    for what, names in ("client.tag.* has", tags), ("rack.aware.assignment.tags names", wanted):
        if len(names) > _MOST_TAGS:
            raise ConfigError(f"{what} {len(names)} tags; at most {_MOST_TAGS} are allowed")
    for name, value in tags.items():
        if len(name) > _LONGEST_TAG or len(str(value)) > _LONGEST_TAG_VALUE:
            raise ConfigError(
                f"client.tag.{name}={value}: the name of a tag may have {_LONGEST_TAG} characters, and its value "
                f"{_LONGEST_TAG_VALUE}"
            )
    unknown = [tag for tag in wanted if tag not in tags]
    if unknown:
        raise ConfigError(
            f"rack.aware.assignment.tags: {', '.join(unknown)} has no value here: set "
            + ", ".join(f"client.tag.{tag}" for tag in unknown)
        )


def _check_streams_protocol(config: StreamsConfig, settings: ClientSettings) -> None:
    """Refuse settings that have no effect with `group.protocol=streams`, where the brokers assign tasks."""
    if settings.membership(1).instance_id is not None:
        raise ConfigError(
            "group.protocol=streams: brokers do not serve static members. Remove group.instance.id, or set group.protocol=classic"
        )
    if config.num_standby_replicas > 0:
        raise ConfigError(
            f"num.standby.replicas={config.num_standby_replicas} has no effect with group.protocol=streams: remove it, and set "
            f"streams.num.standby.replicas for the group (kafka-configs.sh --alter --group {config.application_id} --add-config "
            f"streams.num.standby.replicas={config.num_standby_replicas})"
        )
    if config.task_assignor_class is not None:
        raise ConfigError(
            "task.assignor.class has no effect with group.protocol=streams, because brokers assign tasks: remove it, or set "
            "group.protocol=classic"
        )
    if "max_warmup_replicas" in config.model_fields_set:
        _log.warning(
            "max.warmup.replicas has no effect with group.protocol=streams: brokers do not assign warm-ups yet"
        )


def check_cluster(topology: BuiltTopology, config: StreamsConfig, settings: ClientSettings) -> ClosableAdmin:
    """Check brokers, credentials and topics, create missing internal topics, and return the client used for it.

    Raises:
        BrokerUnreachableError: no broker answered.
        AuthenticationError: the brokers refused the credentials.
        StreamsError: a topic is missing or wrong, or a permission.
    """
    check_connection(settings)
    admin = ClosableAdmin(client_supplier(config).admin(settings.admin()))
    try:
        _provision_internal_topics(topology, config, admin)
        _check_dead_letter_topic(config, admin)
    except BaseException:
        admin.close()
        raise
    return admin


def _provision_internal_topics(topology: BuiltTopology, config: StreamsConfig, admin: AdminClient) -> None:
    """Check that the input topics exist, create internal topics that are missing, and check the existing ones.

    With the internal setting `__internal.topics.create__=false` (the operator creates them) a missing topic is an error.
    With `group.protocol=streams` the group coordinator creates and checks internal topics.

    Raises:
        UnsupportedFeatureError: with `group.protocol=streams`, input topics are read by a pattern.
        MissingSourceTopicError: an input topic does not exist.
        MissingInternalTopicsError: an internal topic does not exist and may not be created.
        MisconfiguredInternalTopicError: an internal topic has the wrong number of partitions or clean-up policy.
    """
    plan = topology.plan()
    if config.group_protocol is GroupProtocol.STREAMS:
        describe_topology(plan, config.replication_factor)
        partition_counts(plan, admin)
        return
    report = provision(plan, admin, config, create=may_create_topics(plan, config))
    if report.created:
        _log.info("Created internal topics %s", ", ".join(sorted(report.created)))


def _check_dead_letter_topic(config: StreamsConfig, admin: AdminClient) -> None:
    """Check that the dead-letter topic exists, or is created by the brokers on demand, and may be written to.

    Output topics are not checked at the start, because the first record shows whether they exist. The first dead letter may
    come after months, and would then end an application that was meant to continue.

    Raises:
        MissingSinkTopicError: it does not exist.
        AuthorizationError: this principal may not write to it.
    """
    name = config.errors_dead_letter_queue_topic_name
    if not name:
        return
    setting = f"errors.dead.letter.queue.topic.name={name}"
    try:
        writable = may_write(admin, name)
    except AuthorizationError as error:
        raise AuthorizationError(f"{setting}: grant this application's user WRITE on the topic. {error}") from error
    if writable is None and not appears_on_demand(admin, name):
        raise MissingSinkTopicError(
            f"{setting}: the topic does not exist. Create it, or correct the setting (in a manifest "
            "spec.processing.deadLetterTopic)"
        )
    if writable is False:
        raise AuthorizationError(f"{setting}: grant this application's user WRITE on the topic; it may only read it")
