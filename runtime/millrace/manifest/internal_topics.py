"""`spec.internalTopics`: the changelog and repartition topics, which the operator creates before pods start."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from millrace.manifest.fields import sets_none_of
from millrace.manifest.kafka import SettingValue
from millrace.manifest.model import ManifestModel, Rule

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
    """The topics that hold the application's state and what it repartitions."""

    management: Literal["Admin", "VerifyOnly"] = "Admin"
    """`Admin`: the operator creates them. `VerifyOnly`: somebody else does, and the operator says what is missing."""
    replication_factor: Annotated[int, Field(ge=1, le=32_767, json_schema_extra={"format": "int32"})] | None = None
    """How many brokers hold each partition; the brokers' default if not given."""
    min_insync_replicas: Annotated[int, Field(ge=1, le=32_767, json_schema_extra={"format": "int32"})] | None = None
    """How many of them must have a record before it counts as written; the brokers' default if not given."""
    config: TopicConfig = Field(default_factory=dict)
    """Further settings of these topics, under Kafka's names. What a store sets for its own topic goes first."""
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
            "minInsyncReplicas must not be more than replicationFactor: nothing could be written",
        ),
    )
