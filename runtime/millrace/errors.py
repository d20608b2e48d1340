"""Every exception Millrace raises, rooted in `StreamsError`.

The names are from Kafka Streams' `errors` package, with Python's ending `Error`, so that a runbook written for Java
still applies. A message says what was wrong, where (topic, partition, offset, node, task), and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator


class StreamsError(Exception):
    """The root of all exceptions that Millrace raises."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return an error and its causes, one after the other."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def of_thread(error: BaseException) -> Exception:
    """Return the error that ended a thread as an `Exception`, which handlers expect.

    Other exceptions, such as `SystemExit` and `asyncio.CancelledError`, would end a Python thread silently.
    """
    if isinstance(error, Exception):
        return error
    found = StreamsError(
        f"{error!r} was raised in one of the application's threads, which ends as with any other error. To stop the application, "
        "call close() of its KafkaStreams"
    )
    found.__cause__ = error
    return found


# Definition: the program or its configuration is wrong; nothing has run yet.


class ConfigError(StreamsError):
    """A configuration key is unknown, missing or has a value outside its range."""


class TopologyError(StreamsError):
    """The topology cannot be built: a name is already used, a node is unknown, inputs are not co-partitioned."""


class ManifestError(StreamsError):
    """A manifest breaks its schema; the message names the field and the rule."""


class EntrypointError(StreamsError):
    """The application's entrypoint cannot be imported, is not callable, or raised."""


# Records: one record cannot be handled.


class SerializationError(StreamsError):
    """A key or value cannot be turned into or read from bytes with the serde in use, or the name of a header has no bytes."""


class UnavailableSerdeError(SerializationError):
    """A service that a serde needs, such as a schema registry, failed: the same bytes may be readable later."""


def is_unavailable(error: BaseException) -> bool:
    """Return whether a serde failed for another reason than the record: bytes alone need no network and no disk."""
    return any(isinstance(cause, UnavailableSerdeError | OSError) for cause in causes(error))


class UnreadableRowError(SerializationError):
    """A row of a state store cannot be read with the store's serdes; names store, key, and the topic that the row came from."""


class InvalidTimestampError(StreamsError):
    """A timestamp is no whole number of milliseconds, or is negative where it must not be."""


class FailedProcessingError(StreamsError):
    """A processor raised; names the node and the record's position. The original is the cause."""


class SlowRecordError(StreamsError):
    """One record takes longer than a transaction or the group allows, again and again; names the record and the setting."""


class ProductionError(StreamsError):
    """The broker permanently refused a record, or it could not be delivered in time."""


# Tasks and state.


class TaskMigratedError(StreamsError):
    """The group gave this member's tasks to another (fenced, unknown member, stale generation): drop them and rejoin."""


class TransactionAbortedError(StreamsError):
    """Records sent since the last commit are void or may be incomplete: start again from there."""


class TaskCorruptedError(StreamsError):
    """The state of tasks does not match their changelogs: close them dirty, wipe the state and restore."""

    def __init__(self, task_ids: frozenset[object], message: str = "") -> None:
        names = ", ".join(sorted(map(str, task_ids)))
        super().__init__(message or f"State of tasks {names} does not match their changelogs; it is wiped and restored")
        self.task_ids = task_ids


class ProcessorStateError(StreamsError):
    """A state store cannot be opened, read or written."""


class StateDirectoryError(ProcessorStateError):
    """The state directory is missing, read-only, full, or in use by another process."""


class LockError(StateDirectoryError):
    """Another process holds the state directory's lock."""


class InvalidStateStoreError(StreamsError):
    """The requested state store does not exist, is closed, has another type, or may only be read."""


class StreamsNotStartedError(InvalidStateStoreError):
    """A store was asked for before the client was started."""


class StreamsRebalancingError(InvalidStateStoreError):
    """A store cannot be read while a stream thread gets its tasks; ask again soon."""


class StateStoreMigratedError(InvalidStateStoreError):
    """A store is not on this instance, or was closed while it was read: its task is on another instance or thread."""


class StateStoreNotAvailableError(InvalidStateStoreError):
    """A store cannot be read any more, because the client is closing or has ended."""


class StreamsStoppedError(InvalidStateStoreError):
    """A query was sent to a client that is closing or has ended."""


class UnknownStateStoreError(InvalidStateStoreError):
    """The topology has no store of this name."""


class InvalidStateStorePartitionError(InvalidStateStoreError):
    """The requested partition of a store is not on this instance."""


# Brokers, topics and the group.


class ListenerError(StreamsError):
    """The address of `health.listener` cannot be listened on."""


class BrokerUnreachableError(StreamsError):
    """No broker of `bootstrap.servers`, or no token endpoint for them, responded in time."""


class AuthenticationError(StreamsError):
    """The brokers refused the credentials, or the security settings do not match the listener."""


class AuthorizationError(StreamsError):
    """The brokers authenticated the client but did not authorize a request; the message names the resource and operation."""


class FencedInstanceIdError(StreamsError):
    """Another member with the same `group.instance.id` has replaced this one in the group."""


class InconsistentGroupError(StreamsError):
    """The group has members that are not Streams applications, or runs another group protocol."""


class ActiveGroupError(StreamsError):
    """The application must be stopped but is still running: its group has members."""


class RebalanceInProgressError(StreamsError):
    """Offsets cannot be committed during a rebalance: continue, and commit again when it is over."""


class MissingSourceTopicError(StreamsError):
    """An input topic does not exist."""


class MissingSinkTopicError(StreamsError):
    """An output topic (for dead letters) does not exist."""


class MissingHistoryError(StreamsError):
    """Kafka has deleted records that a backfill needs; names the partitions and their first offsets."""


class UnusableHistoryError(StreamsError):
    """A record of a backfill's history cannot be read, or one of its results cannot be written; a retry does not help."""


class UnfinishedBackfillError(StreamsError):
    """A backfill has written part of its result and has not finished, so the changelogs do not fit the committed offsets."""


class MissingInternalTopicsError(StreamsError):
    """Internal topics (changelog, repartition) do not exist and may not be created."""


class MisconfiguredInternalTopicError(StreamsError):
    """An internal topic exists with a partition count or configuration that would lose or misplace data."""


class TaskAssignmentError(StreamsError):
    """The leader cannot assign tasks; the message of the cause says why."""


class StreamsTimeoutError(StreamsError):
    """A request to the brokers was retried until `task.timeout.ms` ran out."""


class UnsupportedFeatureError(StreamsError):
    """A setting is valid but not supported by this version."""


# Development: the Kafka that runs with an application on a developer's machine or in tests.


class DevKafkaError(StreamsError):
    """The embedded Kafka cannot be downloaded, started or controlled."""


class JarDownloadError(DevKafkaError):
    """Kafka's jars cannot be downloaded, or are not the pinned ones."""


class JavaNotFoundError(DevKafkaError):
    """This machine has no Java that is recent enough."""


class LocalHostError(StreamsError):
    """A manifest cannot be run on this machine: its folder is in use, or its replicas do not start."""


class BrokerStartError(DevKafkaError):
    """An embedded broker ended or did not serve in time; the message contains the end of its log."""
