"""The thread that fills an instance's global stores from all partitions of their topics, and keeps them up to date.

`start` returns when the stores hold everything that was in the topics when it began, because stream threads may read the
stores from the first record. Global stores have no changelog and no group: every instance reads the whole of each topic,
from the offset that it has on disk, or from the beginning.

A store on disk is used only if it is a copy of the current topic. If the topic was recreated, or has lost records that the
store has not read, the store is emptied and filled from the beginning. Offsets alone cannot distinguish two topics of the
same name, so the topics' ids are stored in a file in the state directory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka.admin import AdminClient

from millrace.config import StreamsConfig
from millrace.deadline import Deadline
from millrace.dropped_records import DroppedRecords
from millrace.engine.global_task import GlobalStateTask
from millrace.errors import MissingSourceTopicError, ProcessorStateError, StreamsError, StreamsTimeoutError, of_thread
from millrace.instance.input_consumer import InputConsumer
from millrace.instance.state_directory import StateDirectory
from millrace.instance.task_restoration import RestoreListener
from millrace.kafka.admin import DescribedTopic, describe_topics
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.client_supplier import client_supplier
from millrace.kafka.offsets import earliest_offsets, latest_offsets
from millrace.records import RawRecord, TopicPartition
from millrace.state.api import StateStore
from millrace.topology.physical_topology import Subtopology

__all__ = ["GLOBAL_TOPICS_FILE", "GlobalStreamThread"]

GLOBAL_TOPICS_FILE = "millrace-global-topics"
"""The file with the ids of the topics that the stores on disk copy."""

_log = logging.getLogger(__name__)
_BATCH = 2_000


class GlobalStreamThread:
    """The thread of the global stores of one instance.

    Args:
        subtopology: `BuiltTopology.global_subtopology`.
        config: the application's settings.
        settings: the clients' settings.
        directory: the instance's, locked.
        admin: asked for partitions and offsets.
        on_failure: called, in this thread, when it cannot continue.
        listener: notified, in the thread that calls `start`, while the stores are filled.
        dropped: counts the records that are dropped; None: they are counted separately.
    """

    def __init__(
        self,
        subtopology: Subtopology,
        config: StreamsConfig,
        settings: ClientSettings,
        directory: StateDirectory,
        admin: AdminClient,
        on_failure: Callable[[Exception], None],
        listener: RestoreListener | None = None,
        dropped: DroppedRecords | None = None,
    ) -> None:
        self._task = GlobalStateTask(
            subtopology,
            config,
            state_dir=directory.global_path,
            clock=lambda: time.time_ns() // 1_000_000,
            dropped=dropped,
        )
        self._config = config
        self._settings = settings
        self._ids_file = directory.path / GLOBAL_TOPICS_FILE
        self._admin = admin
        self._timeout_s = config.task_timeout_ms / 1000
        self._poll_s = config.poll_ms / 1000
        self._on_failure = on_failure
        self._listener = listener
        self._store_of = {topic: store for store, topic in subtopology.changelog_topics.items()}
        self._topics: Mapping[str, DescribedTopic] = {}
        self._beginnings: Mapping[TopicPartition, int] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._readable_ends: Mapping[TopicPartition, int] = {}
        self._consumer: InputConsumer | None = None
        self._committed = time.monotonic()
        self._stale: set[str] = set()
        """Topics that lost the records to be read next, so their stores are no longer copies."""
        self._stop = threading.Event()
        self._unused = threading.Event()
        """Set when the stores are no longer read."""
        self._thread = threading.Thread(target=self._run, name="GlobalStreamThread", daemon=True)

    @property
    def stores(self) -> Mapping[str, StateStore]:
        """The global stores by name."""
        return self._task.stores

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return self._thread is threading.current_thread()

    def look_up_topics(self) -> None:
        """Ask the brokers for the topics and their first and last offsets; nothing is opened yet.

        Raises:
            MissingSourceTopicError: a topic does not exist.
            StreamsTimeoutError: the brokers do not answer within `task.timeout.ms`.
        """
        names = self._task.subtopology.source_topics
        self._topics = describe_topics(self._admin, names, self._timeout_s)
        missing = sorted(set(names) - self._topics.keys())
        if missing:
            raise MissingSourceTopicError(
                f"Topics of global stores do not exist: {', '.join(missing)}; create them first"
            )
        partitions = [TopicPartition(name, number) for name in names for number in range(self._topics[name].partitions)]
        self._beginnings = earliest_offsets(self._admin, partitions, self._timeout_s)
        self._ends = self._readable_ends = latest_offsets(self._admin, partitions, self._timeout_s)
        if self._config.exactly_once:  # do not wait for open transactions
            self._readable_ends = latest_offsets(self._admin, partitions, self._timeout_s, committed_only=True)

    def start(self) -> None:
        """Open the stores, fill them up to the ends that `look_up_topics` found, and continue in the background.

        Raises:
            StreamsTimeoutError: the ends were not reached, and there was no progress for `task.timeout.ms`.
            StreamsError: `shutdown` was called meanwhile.
        """
        try:
            self._task.open_stores()
            starts = self._starts()
            self._task.initialize()
            clients = client_supplier(self._settings.config)
            self._consumer = InputConsumer(
                clients.global_consumer(self._settings.global_consumer()), self._out_of_range
            )
            self._consumer.assign(starts)
            _log.info(
                "Filling global stores %s: %d records",
                ", ".join(self.stores),
                sum(self._readable_ends.values()) - sum(starts.values()),
            )
            self._fill()
        except BaseException:
            self._close()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread, or `start`, to commit and end; returns at once."""
        self._stop.set()

    def shutdown(self) -> None:
        """Commit, close the stores, which must no longer be read, and end the thread."""
        self.stop()
        self._unused.set()
        if self._thread.ident is not None and not self.is_current:
            self._thread.join()

    # Where to begin

    def _starts(self) -> dict[TopicPartition, int]:
        """Empty stores that are no longer copies of their topics, and return the offsets to start at."""
        starts: dict[TopicPartition, int] = {}
        ids = self._known_ids()
        for topic in self._topics:
            known = self._known_offsets(topic)
            reason = self._mismatch(topic, known, ids.get(topic))
            if reason is not None:
                _log.warning("%s: its global store is emptied and filled from the beginning", reason)
            if not known or reason is not None:  # without an offset the contents of the store are unknown
                self._task.wipe(topic)
                known = {}
            starts |= {tp: known.get(tp, first) for tp, first in self._beginnings.items() if tp.topic == topic}
        self._keep_ids()
        return starts

    def _known_offsets(self, topic: str) -> dict[TopicPartition, int]:
        """Return the offset of the next record for each partition that the topic's store has read from."""
        offsets = {tp: self._task.committed_offset(tp) for tp in self._beginnings if tp.topic == topic}
        return {tp: offset + 1 for tp, offset in offsets.items() if offset is not None}

    def _mismatch(self, topic: str, known: Mapping[TopicPartition, int], known_id: str | None) -> str | None:
        """Return why a store is no longer a copy of its topic, or None."""
        if known and known_id is not None and known_id != self._topics[topic].id:
            return f"Topic {topic} was deleted and created again"
        for partition, offset in known.items():
            if offset < self._beginnings[partition]:
                return (
                    f"Unread records of {partition} were deleted: offset {offset} is next, and the first one left is "
                    f"{self._beginnings[partition]}"
                )
            if offset > self._ends[partition]:
                return f"{partition} ends at offset {self._ends[partition]}, before {offset}, which was to be read next"
        return None

    def _known_ids(self) -> dict[str, str]:
        try:
            ids = json.loads(self._ids_file.read_text())
        except (OSError, ValueError):
            return {}
        return ids if isinstance(ids, dict) else {}

    def _keep_ids(self) -> None:
        """Store the ids; failures are ignored, as the stores report a directory that cannot be written to."""
        if any(store.persistent for store in self.stores.values()):
            with contextlib.suppress(OSError):
                self._ids_file.write_text(json.dumps({name: topic.id for name, topic in self._topics.items()}))

    def _out_of_range(self, partition: TopicPartition) -> int:
        self._stale.add(partition.topic)
        raise ProcessorStateError(
            f"{partition} does not have the record that its global store was to read next: records were deleted, or the topic "
            "was created again, while the application runs. The store is emptied; a restart fills it from the topic's beginning"
        )

    # Reading

    def _fill(self) -> None:
        assert self._consumer is not None
        positions = self._consumer.positions
        left, restored = dict(self._readable_ends), dict.fromkeys(self._readable_ends, 0)
        if self._listener is not None:
            for partition, end in left.items():
                store = self._store_of[partition.topic]
                self._listener.on_restore_start(partition, store, positions[partition], end)
        deadline = Deadline(self._timeout_s)
        self._end_complete(left, restored)
        while left and not self._stop.is_set():
            batches = self._poll_once()
            if self._listener is not None:
                for partition, records in batches.items():
                    if partition not in left:
                        continue  # it has new records, while others are still being read to their ends
                    restored[partition] += len(records)
                    store = self._store_of[partition.topic]
                    _, _, offset, *_ = records[-1]
                    self._listener.on_batch_restored(partition, store, offset, len(records))
            self._end_complete(left, restored)
            if batches:
                deadline = Deadline(self._timeout_s)
            elif deadline.passed:
                raise StreamsTimeoutError(
                    f"Global stores {', '.join(self.stores)} are not filled: no record in {self._timeout_s:.0f} s"
                )
        self._task.commit()
        if self._stop.is_set():
            raise StreamsError("The application was closed while its global stores were filled")

    def _end_complete(self, left: dict[TopicPartition, int], restored: Mapping[TopicPartition, int]) -> None:
        """Remove the partitions that are read to their ends, and tell the listener."""
        assert self._consumer is not None
        for partition in [partition for partition, end in left.items() if self._consumer.positions[partition] >= end]:
            del left[partition]
            if self._listener is not None:
                self._listener.on_restore_end(partition, self._store_of[partition.topic], restored[partition])

    def _poll_once(self) -> Mapping[TopicPartition, Sequence[RawRecord]]:
        assert self._consumer is not None
        batches = self._consumer.poll(_BATCH, self._poll_s)
        for partition, records in batches.items():
            self._task.update(partition, records)
        due = time.monotonic() - self._committed >= self._config.commit_interval_ms / 1000
        if due or self._task.uncommitted_bytes() >= self._config.uncommitted_max_bytes:
            self._committed = time.monotonic()
            self._task.commit()
        return batches

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._poll_once()
            self._task.commit()
        except BaseException as error:  # the brokers, a store or a user's processor failed, so the client fails too
            self._on_failure(of_thread(error))
        finally:
            # Stream threads finish what they are processing: they would find nothing in a closed store, and commit that.
            self._unused.wait()
            self._close()

    def _close(self) -> None:
        try:
            self._task.close()
        except Exception:  # a store or a processor failed to close; what was committed is on disk
            _log.warning("The global stores could not be closed cleanly", exc_info=True)
        for topic in self._stale:
            try:
                self._task.delete_files(topic)
            except ProcessorStateError as error:  # the next start notices again, as far as offsets show it
                _log.warning("The global store of %s is not emptied: %s", topic, error)
        if self._consumer is not None:
            self._consumer.close()
