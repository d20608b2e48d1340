"""Deletes the records of repartition topics that are processed, every `repartition.purge.interval.ms`.

They were written to be read once, and their retention is infinite, so that nothing is lost while an application is down.
A failed request is no harm: the next one deletes the same and more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace.records import TopicPartition

if TYPE_CHECKING:
    from millrace.runtime.thread_resources import ThreadContext, ThreadResources

__all__ = ["RepartitionPurge"]

_log = logging.getLogger(__name__)
_METADATA_TIMEOUT_S = 5.0


class RepartitionPurge:
    """Purges what one thread's tasks have committed."""

    def __init__(self, resources: ThreadResources, context: ThreadContext) -> None:
        self._resources = resources
        self._admin = context.admin
        self._every_s = context.config.repartition_purge_interval_ms / 1000
        self._topics = frozenset(
            topic for subtopology in context.topology.subtopologies for topic in subtopology.repartition_topics
        )
        self._last = time.monotonic()
        self._purged: dict[TopicPartition, int] = {}
        self._running: list[Any] = []

    def run_if_due(self, now: float) -> None:
        """Send the request if it is time for it and the last one is answered; `now` is monotonic seconds."""
        if not self._topics or now - self._last < self._every_s:
            return
        if any(not future.done() for future in self._running):
            return
        self._last = now
        problem = next((future.exception() for future in self._running if future.exception() is not None), None)
        if problem is not None:
            self._purged.clear()
            _log.warning("Repartition topics were not purged, and grow until they are: %s", problem)
            with contextlib.suppress(KafkaException):  # leaders may have moved; if not, the old ones are asked again
                self._admin.list_topics(timeout=_METADATA_TIMEOUT_S)
        self._running = []
        wanted = {
            partition: position.offset
            for partition, position in self._resources.tasks.committed_positions().items()
            if partition.topic in self._topics and position.offset > self._purged.get(partition, 0)
        }
        if not wanted:
            return
        request = [ClientTopicPartition(*partition, offset) for partition, offset in wanted.items()]
        try:
            futures = self._admin.delete_records(request)
        except KafkaException as error:
            _log.warning("Repartition topics cannot be purged, and grow until they are: %s", error)
            return
        self._purged.update(wanted)
        self._running = list(futures.values())
