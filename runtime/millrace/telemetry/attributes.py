"""The names under which spans and measurements tell what they are about.

Those that begin with `messaging.` are OpenTelemetry's semantic conventions for messaging; a test holds them against the
conventions package that is installed (whose own constants live in a private module). The others are ours.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION_NAME: Final = "messaging.destination.name"
DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"
KAFKA_OFFSET: Final = "messaging.kafka.offset"
CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"

TASK_ID: Final = "kafka.streams.task.id"
TASK_IDS: Final = "kafka.streams.task.ids"
THREAD_ID: Final = "kafka.streams.thread.id"
EXACTLY_ONCE: Final = "kafka.streams.exactly_once"
"""Whether a commit was a transaction."""
