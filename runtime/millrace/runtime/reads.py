"""What the topology reads, sub-topology by sub-topology, and what it read when this instance was last given tasks.

A static member that comes back is given what it had, without a rebalance, also if its program reads other topics by then: brokers
do not look into subscriptions. So the instance keeps in its state directory what it read, and asks for a rebalance when that has
changed; and partitions that its topology does not read, given by a leader of another version, it does not take.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from pathlib import Path

from millrace.records import TaskId, TopicPartition
from millrace.topology.model import BuiltTopology

__all__ = ["READS_FILE", "Reads"]

READS_FILE = "millrace-reads"


class Reads:
    """The topics that each sub-topology reads.

    Args:
        topology: The topology.
        path: The application's directory; None if nothing is kept on disk.
    """

    def __init__(self, topology: BuiltTopology, path: Path | None) -> None:
        self._topics = {item.id: frozenset(item.source_topics) for item in topology.subtopologies}
        self._patterns = {item.id: [each.pattern for each in item.source_patterns] for item in topology.subtopologies}
        self._path = None if path is None else path / READS_FILE
        self._kept = False

    @property
    def changed(self) -> bool:
        """Whether it is, or may be, another than when this instance was last given tasks."""
        if self._path is None:
            return True
        try:
            return self._path.read_text() != self._text()
        except OSError:
            return False  # a new instance, for which the group rebalances anyway

    def keep(self) -> None:
        """Keep what is read now; a directory that cannot be written to is told of by those who keep state in it."""
        if self._path is None or self._kept:
            return
        with contextlib.suppress(OSError):
            self._path.write_text(self._text())
            self._kept = True

    def fits(self, task: TaskId, partitions: Collection[TopicPartition]) -> bool:
        """Return whether a task's input is what its sub-topology reads."""
        if self._patterns.get(task.subtopology):
            return True
        return {item.topic for item in partitions} <= self._topics.get(task.subtopology, frozenset())

    def _text(self) -> str:
        content = {
            str(number): [sorted(self._topics[number]), self._patterns[number]] for number in sorted(self._topics)
        }
        return json.dumps(content)
