"""Fills an instance's global stores from all partitions of their topics, and keeps them up to date.

`start` returns when the stores hold everything that was in the topics when it began, because stream threads may read them
from their first record on. Global stores have no changelog and no group: every instance reads the whole of each topic,
from the offset its disk has, or from the beginning.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.engine.global_task import GlobalStateTask
from millrace.errors import MissingSourceTopicError, StreamsTimeoutError
from millrace.kafka.clients import ClientSettings, open_consumer
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.records import TopicPartition
from millrace.runtime.input_consumer import InputConsumer
from millrace.runtime.state_directory import StateDirectory
from millrace.state.api import StateStore
from millrace.topology.built import Subtopology

__all__ = ["GlobalStreamThread"]

_log = logging.getLogger(__name__)
_BATCH = 2_000
_METADATA_TIMEOUT_S = 15.0


class GlobalStreamThread:
    """The thread of the global stores of one instance.

    Args:
        subtopology: `BuiltTopology.global_subtopology`.
        config: the application's settings.
        settings: the clients' settings.
        directory: the instance's, locked.
        admin: asked for partitions and offsets.
        on_failure: called, in this thread, when it cannot go on.
    """

    def __init__(
        self,
        subtopology: Subtopology,
        config: StreamsConfig,
        settings: ClientSettings,
        directory: StateDirectory,
        admin: AdminClient,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._task = GlobalStateTask(
            subtopology, config, state_dir=directory.global_path, clock=lambda: time.time_ns() // 1_000_000
        )
        self._admin = admin
        self._timeout_s = config.task_timeout_ms / 1000
        self._poll_s = config.poll_ms / 1000
        self._commit_every_s = config.commit_interval_ms / 1000
        self._on_failure = on_failure
        self._consumer = InputConsumer(open_consumer(settings.global_consumer()), self._earliest)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="GlobalStreamThread", daemon=True)

    @property
    def stores(self) -> Mapping[str, StateStore]:
        """The global stores by name."""
        return self._task.stores

    def start(self) -> None:
        """Open the stores, fill them up to the present ends of their topics, and go on in the background.

        Raises:
            MissingSourceTopicError: a topic does not exist.
            StreamsTimeoutError: the ends are not reached within `task.timeout.ms` without progress.
        """
        try:
            self._task.initialize()
            partitions = self._partitions()
            beginnings = earliest_offsets(self._admin, partitions, self._timeout_s)
            ends = latest_offsets(self._admin, partitions, self._timeout_s)
            starts = {tp: self._start_offset(tp, beginnings[tp], ends[tp]) for tp in partitions}
            self._consumer.assign(starts)
            _log.info(
                "Filling global stores %s: %d records",
                ", ".join(self.stores),
                sum(ends.values()) - sum(starts.values()),
            )
            self._fill(ends)
            self._task.commit()
        except BaseException:
            self._close()
            raise
        self._thread.start()

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Commit, close the stores and end the thread."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _partitions(self) -> list[TopicPartition]:
        try:
            present = self._admin.list_topics(timeout=_METADATA_TIMEOUT_S).topics
        except KafkaException as error:
            raise StreamsTimeoutError(f"No metadata of the global stores' topics: {error.args[0].str()}") from error
        topics = self._task.subtopology.source_topics
        missing = sorted(set(topics) - present.keys())
        if missing:
            raise MissingSourceTopicError(
                f"Topics of global stores do not exist: {', '.join(missing)}; create them first"
            )
        return [TopicPartition(topic, number) for topic in topics for number in present[topic].partitions]

    def _start_offset(self, partition: TopicPartition, beginning: int, end: int) -> int:
        known = self._task.committed_offset(partition)
        return beginning if known is None or not beginning <= known + 1 <= end else known + 1

    def _earliest(self, partition: TopicPartition) -> int:
        return earliest_offsets(self._admin, [partition], self._timeout_s)[partition]

    def _fill(self, ends: Mapping[TopicPartition, int]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while any(self._consumer.positions[tp] < end for tp, end in ends.items()):
            if self._poll_once(self._poll_s):
                deadline = time.monotonic() + self._timeout_s
            elif time.monotonic() > deadline:
                raise StreamsTimeoutError(
                    f"Global stores {', '.join(self.stores)} are not filled: no record in {self._timeout_s:.0f} s"
                )

    def _poll_once(self, timeout_s: float) -> int:
        batches = self._consumer.poll(_BATCH, timeout_s)
        for partition, records in batches.items():
            self._task.update(partition, records)
        return len(batches)

    def _run(self) -> None:
        committed = time.monotonic()
        try:
            while not self._stop.is_set():
                self._poll_once(self._poll_s)
                if time.monotonic() - committed >= self._commit_every_s:
                    committed = time.monotonic()
                    self._task.commit()
            self._task.commit()
        except Exception as error:  # of the brokers, a store or the user's processor: the client ends with it
            _log.exception("The global stores cannot be kept up to date")
            self._on_failure(error)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._task.close()
        except Exception:  # of a store or a processor's close; what was committed is on disk
            _log.warning("The global stores could not be closed cleanly", exc_info=True)
        self._consumer.close()
