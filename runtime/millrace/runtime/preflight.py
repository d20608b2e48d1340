"""What is checked before the first thread starts, so that what is wrong is said at once and in words.

Settings that this version does not serve; brokers and credentials; input topics; internal topics, which are created if
missing.
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millrace.config import GroupProtocol, StreamsConfig
from millrace.errors import BrokerUnreachableError, ConfigError, MissingSourceTopicError, UnsupportedFeatureError
from millrace.kafka.clients import ClientSettings
from millrace.topology.built import BuiltTopology

__all__ = ["check_input_topics", "check_served", "input_topics", "provision_internal_topics"]

_log = logging.getLogger(__name__)
_METADATA_TIMEOUT_S = 15.0


def check_served(config: StreamsConfig, settings: ClientSettings) -> None:
    """Check that the settings are served and fit each other.

    Raises:
        UnsupportedFeatureError: one is valid but not served by this version.
        ConfigError: two contradict each other.
    """
    if config.group_protocol is GroupProtocol.STREAMS:
        raise UnsupportedFeatureError(
            "group.protocol=streams (KIP-1071) is not served yet: remove the setting, or set it to classic"
        )
    if config.num_standby_replicas > 0:
        raise UnsupportedFeatureError(
            f"num.standby.replicas={config.num_standby_replicas} is not served yet: set it to 0. State is restored from "
            "the changelogs when a task moves; static members on volumes keep theirs"
        )
    if config.exactly_once:
        timeout_ms = int(settings.producer(1).get("transaction.timeout.ms", 0))
        if config.commit_interval_ms > timeout_ms:
            raise ConfigError(
                f"commit.interval.ms={config.commit_interval_ms} is longer than producer.transaction.timeout.ms={timeout_ms}: "
                "every transaction would time out. Make the interval shorter or the time-out longer"
            )
    for key, near in config.unknown_keys().items():
        _log.warning("%s is not a Kafka Streams setting; did you mean %s? It is passed to the clients", key, near)


def input_topics(topology: BuiltTopology) -> frozenset[str]:
    """Return the topics that must exist before the application starts: sources by name that are not repartition topics."""
    subtopologies = [*topology.subtopologies, *filter(None, [topology.global_subtopology])]
    return frozenset(
        topic
        for subtopology in subtopologies
        for topic in subtopology.source_topics
        if not any(topic in other.repartition_topics for other in topology.subtopologies)
    )


def check_input_topics(topology: BuiltTopology, admin: AdminClient) -> None:
    """Check that the input topics exist.

    Raises:
        MissingSourceTopicError: some do not.
        BrokerUnreachableError: the brokers do not answer.
    """
    try:
        present = admin.list_topics(timeout=_METADATA_TIMEOUT_S).topics
    except KafkaException as error:
        raise BrokerUnreachableError(
            f"The brokers gave no metadata in {_METADATA_TIMEOUT_S:.0f} s: {error.args[0].str()}"
        ) from error
    missing = sorted(input_topics(topology) - present.keys())
    if missing:
        raise MissingSourceTopicError(
            f"Input topics {', '.join(missing)} do not exist: create them (with the partition count the application is to "
            "have tasks), or correct their names in the topology"
        )


def provision_internal_topics(topology: BuiltTopology, config: StreamsConfig, settings: ClientSettings) -> None:
    """Create the internal topics that are missing, and check those that exist.

    Raises:
        MisconfiguredInternalTopicError: one exists with another partition count.
    """
