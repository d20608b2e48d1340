"""How far standbys follow source topics: to the group's committed offset, which is fetched now and then.

A store that is a copy of a source topic has no separate changelog. Records beyond the committed offset have yet to be
processed by the active task; if a standby already had them, they would be applied twice after a take-over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Set as AbstractSet

from millrace.errors import StreamsTimeoutError
from millrace.instance.membership import GroupMembership
from millrace.instance.state_updater import StateUpdater
from millrace.kafka.membership.offsets import CommittedOffsets
from millrace.records import TopicPartition

__all__ = ["StandbyLimits"]

_log = logging.getLogger(__name__)


class StandbyLimits:
    """Tells a thread's updater about commits in source topics.

    Args:
        member: asked for committed offsets.
        updater: told about them.
        every_s: how often to ask, in seconds.
    """

    def __init__(self, member: GroupMembership, updater: StateUpdater, every_s: float) -> None:
        self._member = member
        self._updater = updater
        self._every_s = every_s
        self._asked: tuple[AbstractSet[TopicPartition], CommittedOffsets] | None = None
        self._next = 0.0

    def refresh(self, partitions: AbstractSet[TopicPartition]) -> None:
        """Take the answer to the last request, or send the next one if it is due; does not wait.

        Args:
            partitions: of source topics that standbys follow.

        Raises:
            AuthorizationError: a topic or the group may not be read.
            StreamsError: the broker refused permanently.
        """
        if self._asked is not None:
            asked, answer = self._asked
            try:
                committed = answer.of(asked)
            except StreamsTimeoutError as error:
                _log.info("Standbys do not follow %s for now: %s", ", ".join(map(str, sorted(asked))), error)
                committed = {}
            if committed is None:
                return
            self._asked = None
            self._updater.limit({partition: position.offset for partition, position in committed.items()})
        now = time.monotonic()
        if partitions and now >= self._next:
            self._next = now + self._every_s
            self._asked = partitions, self._member.ask_committed(partitions)
