"""The hands on Kafka: what an application's brokers say of it, and the changes that a decision asks of them."""

from millrace_operator.kafka.actions import KafkaAction, SetOffsets
from millrace_operator.kafka.clusters import KafkaClusters
from millrace_operator.kafka.credentials import Credentials, needed_secrets

__all__ = ["Credentials", "KafkaAction", "KafkaClusters", "SetOffsets", "needed_secrets"]
