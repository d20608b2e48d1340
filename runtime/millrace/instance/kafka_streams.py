"""`KafkaStreams`: an application instance, from `start` to `close`.

The client owns what its threads share (state directory, admin client) and decides what happens when a thread dies. Its state
follows from the threads' states: RUNNING when all of them run, REBALANCING until then.

Closing waits for `start` to end, then for the stream threads and the thread of the global stores; a caller in one of these
threads only starts it. No lock is held while user code runs, so user code may call any method.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from millrace.assignment import AssignedTasks
from millrace.checks import callback, instance
from millrace.config import StreamsConfig
from millrace.dropped_records import DroppedRecords
from millrace.errors import StreamsError
from millrace.instance.activity import Activity
from millrace.instance.background import Startup
from millrace.instance.failures import ask_what_to_do
from millrace.instance.global_thread import GlobalStreamThread
from millrace.instance.health import Page, ProbeServer, serve_probes
from millrace.instance.housekeeping import Housekeeping
from millrace.instance.instrumentation import Instrumentation
from millrace.instance.local_stores import LocalStores
from millrace.instance.membership import MembershipFactory
from millrace.instance.metadata import (
    LagInfo,
    StreamsMetadata,
    ThreadMetadata,
    host_stores,
    store_lags,
    thread_metadata,
)
from millrace.instance.preflight import check_cluster, check_supported
from millrace.instance.resources import ThreadContext
from millrace.instance.state_directory import StateDirectory
from millrace.instance.states import (
    ClientLifecycle,
    State,
    StateListener,
    ThreadState,
    UncaughtExceptionHandler,
    UncaughtExceptionResponse,
)
from millrace.instance.status_report import InstanceInfo, take_status
from millrace.instance.stream_thread import CLOSE_WAIT_S, StreamThread
from millrace.instance.task_restoration import RestoreListener, StandbyUpdateListener
from millrace.instance.thread_pool import ThreadPool
from millrace.instance_status import StreamsStatus
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.clients import ClosableAdmin
from millrace.kafka.credential_watch import CredentialWatch
from millrace.query import StateQueryRequest, StateQueryResult, StoreQueryParameters
from millrace.topology import Topology

__all__ = ["KafkaStreams"]

R = TypeVar("R")
S = TypeVar("S")

_log = logging.getLogger(__name__)
_LOCAL_CLOSE_S = 5.0
"""How much of the timeout of `close` is reserved for steps that need no broker."""


class KafkaStreams:
    """One instance of a Streams application; `millrace.run` is a whole program around it.

    Args:
        topology: what to run.
        config: a `StreamsConfig`, or settings under Kafka's dotted names.
        instrumentation: traces what the threads do; None costs nothing.
        metrics_page: returns what `health.listener` serves at `/metrics`; None = nothing.

    Raises:
        ConfigError: a setting is wrong, or `bootstrap.servers` is missing.
        TopologyError: the topology cannot be built.
        UnsupportedFeatureError: a setting is not supported by this version.

    Example::

        with KafkaStreams(topology, {"application.id": "wc", "bootstrap.servers": "broker:9092"}) as streams:
            streams.wait()
    """

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig | Mapping[str, object],
        *,
        instrumentation: Instrumentation | None = None,
        metrics_page: Callable[[], Page] | None = None,
    ) -> None:
        instance(topology, "topology", Topology, "a Topology", "call build() of the StreamsBuilder")
        self.config = StreamsConfig.of(config)
        self.topology = topology.build(self.config)
        check_supported(self.config, ClientSettings(self.config, "check", resolve_references=False))
        self._instrumentation = instrumentation
        self._metrics_page = metrics_page
        self._directory = StateDirectory(self.config, persistent=self.topology.persistent)
        self._lock = threading.RLock()
        self._lifecycle = ClientLifecycle(self.config.application_id, self._lock)
        self._activity = Activity(self._directory.path)
        self._dropped = DroppedRecords()
        self._pool = ThreadPool(
            self._lock, self.config.statestore_cache_max_bytes, self._new_thread, self._activity.ended
        )
        self._startup = Startup()
        self._restore_listener: RestoreListener | None = None
        self._standby_listener: StandbyUpdateListener | None = None
        self._exception_handler: UncaughtExceptionHandler = lambda _: UncaughtExceptionResponse.SHUTDOWN_CLIENT
        self._context: ThreadContext | None = None
        self._global_thread: GlobalStreamThread | None = None
        self._housekeeping = Housekeeping(
            self.config,
            self._directory,
            self._measure,
            self.status,
        )
        self._instance = InstanceInfo(
            self.config.application_id,
            topology_hash=self.topology.plan().hash,
            group_protocol=self.config.group_protocol.value,
        )
        self._health: ProbeServer | None = None
        self._assigned = AssignedTasks()
        self._stores = LocalStores(
            self.topology,
            exactly_once=self.config.exactly_once,
            state=lambda: self.state,
            threads=lambda: self._pool.threads,
            global_stores=lambda: {} if self._global_thread is None else self._global_thread.stores,
        )
        self._credentials: CredentialWatch | None = None
        self._admin: ClosableAdmin | None = None
        self._paused = threading.Event()
        self.error: Exception | None = None
        """The error that ended the instance, or None."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<KafkaStreams {self.config.application_id} {self.state.value}>"

    # Settings that must come before start

    def set_state_listener(self, listener: StateListener | None) -> None:
        """Set a function to be called with (new, old) on every change of state, in order and one call at a time.

        It runs in the thread that changed the state, and delays it.
        """
        self._lifecycle.require_created("set a state listener")
        self._lifecycle.listener = listener

    def set_uncaught_exception_handler(self, handler: UncaughtExceptionHandler) -> None:
        """Set the function that decides what to do when a thread has died; the default shuts the client down.

        It is called in that thread. The thread of global stores is not replaced: REPLACE_THREAD shuts the client down then.

        Raises:
            TopologyError: it is not a function of one argument.
        """
        self._lifecycle.require_created("set an uncaught exception handler")
        callback(handler, "handler", "exception")
        self._exception_handler = handler

    def set_restore_listener(self, listener: RestoreListener | None) -> None:
        """Set the object that is notified of restoration, also of global stores (Java: setGlobalStateRestoreListener)."""
        self._lifecycle.require_created("set a restore listener")
        self._restore_listener = listener

    def set_standby_update_listener(self, listener: StandbyUpdateListener | None) -> None:
        """Set the object that is notified of updates of standbys (KIP-988)."""
        self._lifecycle.require_created("set a standby update listener")
        self._standby_listener = listener

    # Life cycle

    @property
    def state(self) -> State:
        """The client's current state."""
        return self._lifecycle.state

    def start(self) -> None:
        """Check everything, then start the stream threads; returns without waiting for them to run.

        Raises:
            LockError: another process uses the state directory.
            StateDirectoryError: the state directory cannot be written to.
            ListenerError: `health.listener` names an address that cannot be listened on.
            BrokerUnreachableError: no broker answered.
            AuthenticationError: the brokers refused the credentials.
            MissingSourceTopicError: an input topic does not exist.
            MisconfiguredInternalTopicError: an internal topic has the wrong number of partitions.
            MissingSinkTopicError: the dead-letter topic does not exist.
            AuthorizationError: this principal lacks a permission.
            StreamsError: it was started before, or `close` was called while it was starting.
        """
        with self._lock:
            self._lifecycle.require_created("start")
            self._startup.begin()
        try:
            self._start()
        finally:
            self._startup.end()

    def _start(self) -> None:
        self._directory.lock()
        try:
            process_id = str(self._directory.process_id)
            self._instance = replace(self._instance, process_id=process_id)
            settings = ClientSettings(self.config, process_id)
            self._health = serve_probes(self.config, settings, self.status, self._metrics_page)
            self._credentials = settings.watch_credentials()
            self._admin = admin = self._startup.call(lambda: check_cluster(self.topology, self.config, settings))
            self._start_global_thread(settings, admin)
            self._startup.require_not_closed()
        except BaseException:
            if self._global_thread is not None:
                self._global_thread.shutdown()
            if self._admin is not None:
                self._admin.close()
            if self._health is not None:
                self._health.close()
            self._directory.unlock()
            raise
        self._context = ThreadContext(
            topology=self.topology,
            config=self.config,
            settings=settings,
            directory=self._directory,
            admin=admin,
            new_membership=MembershipFactory(self.topology, self.config, settings, self._directory, admin),
            on_shutdown_requested=self._on_shutdown_requested,
            on_assigned=self._on_assigned,
            cache_max_bytes=self._pool.cache_share,
            dropped=self._dropped,
            instrumentation=self._instrumentation,
            restore_listener=self._restore_listener,
            standby_listener=self._standby_listener,
            global_stores={} if self._global_thread is None else self._global_thread.stores,
            paused=self._paused,
        )
        self._lifecycle.set(State.REBALANCING)
        if self.error is not None:  # the global stores failed right after they were filled
            self._end_with(self.error)
        self._housekeeping.start()
        self._credentials.start()
        self._pool.start(self.config.num_stream_threads)  # even if it was closed meanwhile: the shutdown ends them

    def close(self, timeout_s: float | None = None, *, leave_group: bool | None = None) -> bool:
        """Commit, close all tasks and stop; may be called from any thread, and more than once.

        It waits for brokers that do not answer for 20 seconds in all or, with a timeout, until 5 seconds before it (half of
        it, if it is shorter than 10 seconds). After that it closes tasks without a commit. This loses nothing: what was
        processed since the last commit is processed again, and an open transaction is aborted.

        A `start` under way in another thread ends with an error. In one of the client's own threads (in a processor, punctuator,
        handler or listener) closing only begins, because it waits for that thread.

        Args:
            timeout_s: how long to wait for the threads; None = until they have ended, 0 = not at all.
            leave_group: whether to give the tasks to others at once. None: dynamic members leave, static members keep their
                place until their session times out.

        Returns:
            Whether everything has ended; in one of the client's own threads False, at once.
        """
        with self._lock:
            if self.state is State.NOT_RUNNING:
                return True
            begun = self.state in (State.PENDING_SHUTDOWN, State.PENDING_ERROR)
            if self.state is State.DRAINING and leave_group is None:
                leave_group = True
            if not begun:
                self._lifecycle.move(State.PENDING_SHUTDOWN)
                self._startup.close()
        broker_wait_s = max(timeout_s - _LOCAL_CLOSE_S, timeout_s / 2) if timeout_s else CLOSE_WAIT_S
        if begun:
            self._pool.shutdown(leave_group=leave_group, broker_wait_s=broker_wait_s)  # an earlier limit stays
        else:
            self._begin_shutdown(leave_group, State.NOT_RUNNING, broker_wait_s)
            self._lifecycle.tell()
        return self._wait_for_end(timeout_s)

    def drain(self) -> bool:
        """Give up all tasks for good, and stay alive without any until `close`; returns at once.

        Every stream thread commits, closes its tasks and leaves the group, static or not, so that other instances take the tasks
        over while this one is still alive. The state becomes DRAINING, then DRAINED; there is no way back.

        Returns:
            Whether the client is draining or drained; False if it is not running.
        """
        with self._lock:
            if self.state in (State.DRAINING, State.DRAINED):
                return True
            if not self.state.is_running_or_rebalancing:
                return False
            self._lifecycle.move(State.DRAINING)
            threads = self._pool.threads
        for thread in threads:
            thread.shutdown(leave_group=True)
        threading.Thread(target=self._finish_drain, args=(threads,), name="millrace-drain", daemon=True).start()
        self._lifecycle.tell()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the client has ended; return whether it has, which is False after the timeout.

        One of the client's own threads does not wait, since the client waits for it.

        Raises:
            Exception: what ended the client, if it failed; see `error`.
        """
        ended = self._wait_for_end(timeout_s)
        if ended and self.error is not None:
            raise self.error
        return ended

    def _wait_for_end(self, timeout_s: float | None) -> bool:
        of_global_stores = self._global_thread is not None and self._global_thread.is_current
        if self._startup.is_current or of_global_stores or any(thread.is_current for thread in self._pool.threads):
            return self.state.has_ended  # closing waits for the calling thread
        return self._lifecycle.wait_for_end(timeout_s)

    def clean_up(self) -> None:
        """Delete this instance's local state; it is restored from the changelogs at the next start.

        Raises:
            StreamsError: the instance is running.
            LockError: another process uses the directory.
        """
        if self.state not in (State.CREATED, State.NOT_RUNNING):
            raise StreamsError(f"Cannot clean up while the application is {self.state.value}: close it first")
        self._directory.clean_up()

    def pause(self) -> None:
        """Stop processing, punctuating and restoring at the next record; before or after `start` (KIP-834).

        Threads stay in their group and commit what was processed. Global stores are still updated.
        """
        self._paused.set()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._paused.clear()

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called, and `resume` was not called since."""
        return self._paused.is_set()

    # Its activity

    def metadata_for_local_threads(self) -> tuple[ThreadMetadata, ...]:
        """Return the state and tasks of each stream thread."""
        return tuple(thread_metadata(thread) for thread in self._pool.threads)

    def all_local_store_partition_lags(self) -> dict[str, dict[int, LagInfo]]:
        """Return how far each local store is behind the end of its changelog, by store and partition; asks the brokers."""
        return {} if self._context is None else store_lags(self._pool.threads, self._context.admin)

    def metadata_for_all_streams_clients(self) -> tuple[StreamsMetadata, ...]:
        """Return the stores and partitions of each instance with an `application.server`, as of the last assignment."""
        return host_stores(self.topology, self._assigned)

    def streams_metadata_for_store(self, store: str) -> tuple[StreamsMetadata, ...]:
        """Return the instances that have active or standby partitions of a store."""
        every = self.metadata_for_all_streams_clients()
        return tuple(one for one in every if store in one.state_store_names | one.standby_state_store_names)

    def store(self, wanted: StoreQueryParameters[S]) -> S:
        """Return a store of this instance's tasks for queries from any thread (KIP-67, KIP-562).

        It reads what its tasks have while it is used, and does not hold them up. Under exactly-once it sees committed rows unless
        `wanted` says otherwise; so no answer is taken back by an abort. Unlike in Java, this method checks at once whether the
        store is here.

        Raises:
            InvalidStateStoreError: the store cannot be read as this type; or one of its subclasses: StreamsNotStartedError,
                StreamsRebalancingError (try again soon), StateStoreNotAvailableError (closing, or ended),
                StateStoreMigratedError (not on this instance), UnknownStateStoreError, InvalidStateStorePartitionError.

        Example::

            counts = streams.store(
                StoreQueryParameters.from_name_and_type("counts", QueryableStoreTypes.key_value_store())
            )
            counts.get("hello")
            with counts.range("a", "c") as rows:
                for word, count in rows:
                    ...
        """
        instance(
            wanted,
            "wanted",
            StoreQueryParameters,
            "StoreQueryParameters",
            "call from_name_and_type of that class",
        )
        self._stores.find(wanted)
        return wanted.store_type.over(wanted.store_name, lambda: self._stores.find(wanted))

    def query(self, request: StateQueryRequest[R]) -> StateQueryResult[R]:
        """Return what this instance's part of a store answers to a query, from any thread (KIP-796).

        Each partition has its own result or failure, with the position that it reflects. Under exactly-once queries see
        committed rows unless the request says otherwise. Unlike in Java, global stores answer too.

        Raises:
            StreamsNotStartedError: before `start`.
            StreamsStoppedError: the client is closing, or has ended.
            UnknownStateStoreError: the topology has no such store.
            SerializationError: the store's key serde cannot write the key.

        Example::

            request = StateQueryRequest.in_store("counts").with_query(KeyQuery.with_key("hello"))
            found = streams.query(request).only_partition_result
            print(found and found.result)
        """
        instance(
            request,
            "request",
            StateQueryRequest,
            "a StateQueryRequest",
            "call StateQueryRequest.in_store(…).with_query(…)",
        )
        return self._stores.query(request)

    def status(self) -> StreamsStatus:
        """Return a snapshot of the instance; cheap."""
        return take_status(
            self._instance,
            lambda: (self.state, self._pool.threads),
            self._activity,
            self._dropped,
            error=self.error,
            credentials_stale=self._credentials is not None and self._credentials.stale,
        )

    @property
    def health_address(self) -> tuple[str, int] | None:
        """Host and port of the probes, None if there are none (`health.listener`)."""
        return None if self._health is None else self._health.address

    # Threads

    def add_stream_thread(self) -> str | None:
        """Start one more stream thread and return its name (KIP-663); None unless the client is running or rebalancing.

        The group gives it tasks, and the record cache is divided among one thread more.
        """
        with self._lock:
            return self._pool.add().name if self.state.is_running_or_rebalancing else None

    def remove_stream_thread(self, timeout_s: float | None = None) -> str | None:
        """Stop one stream thread and return its name (KIP-663); None if there is none, or the client is not running.

        It commits and leaves the group, static or not, so that other threads get its tasks.

        Args:
            timeout_s: how long to wait for its end; None = as long as it takes. A call in a stream thread does not wait: it ends
                another thread if there is one, or else the calling thread, at the end of its round.

        Raises:
            StreamsTimeoutError: it has not ended in time; it will.
        """
        if not self.state.is_running_or_rebalancing:
            return None
        thread = self._pool.remove(timeout_s)
        return None if thread is None else thread.name

    @property
    def threads(self) -> tuple[StreamThread, ...]:
        """The stream threads, for inspection; ended ones are included until they are replaced or removed."""
        return tuple(self._pool.threads)

    def _start_global_thread(self, settings: ClientSettings, admin: ClosableAdmin) -> None:
        subtopology = self.topology.global_subtopology
        if subtopology is not None:
            thread = GlobalStreamThread(
                subtopology,
                self.config,
                settings,
                self._directory,
                admin,
                self._on_global_death,
                self._restore_listener,
                self._dropped,
            )
            self._startup.call(thread.look_up_topics)
            self._global_thread = thread  # from here on, closing stops it
            self._startup.require_not_closed()
            thread.start()

    def _measure(self) -> None:
        threads = self._pool.threads
        for thread in threads:
            thread.progress.look()
        self._activity.measure(thread.totals for thread in threads)

    def _new_thread(self, number: int) -> StreamThread:
        assert self._context is not None
        return StreamThread(number, self._context, self._on_thread_state, self._on_thread_death)

    def _on_assigned(self, generation: int, assigned: AssignedTasks) -> None:
        self._activity.joined(generation)
        self._assigned = assigned

    def _on_thread_state(self, thread: StreamThread, new: ThreadState, _old: ThreadState) -> None:
        with self._lock:
            if new is ThreadState.DEAD:
                self._pool.ended(thread, replace=self.state.is_running_or_rebalancing)
            if not self.state.is_running_or_rebalancing:
                return
            if new in (ThreadState.PARTITIONS_REVOKED, ThreadState.PARTITIONS_ASSIGNED):
                self._lifecycle.move(State.REBALANCING)
            elif self._pool.all_running:
                self._lifecycle.move(State.RUNNING)
        self._lifecycle.tell()

    def _on_thread_death(self, thread: StreamThread, error: Exception) -> None:
        response = ask_what_to_do(self._exception_handler, thread.name, error)
        if response is UncaughtExceptionResponse.REPLACE_THREAD:
            with self._lock:
                self._pool.replace(thread)
                self._lifecycle.move(State.REBALANCING)
            self._lifecycle.tell()
        else:
            self._end_with(error, thread if response is UncaughtExceptionResponse.SHUTDOWN_APPLICATION else None)

    def _on_global_death(self, error: Exception) -> None:
        response = ask_what_to_do(self._exception_handler, "The thread of the global stores", error)
        if response is UncaughtExceptionResponse.REPLACE_THREAD:
            _log.warning("The thread of the global stores cannot be replaced: shutting the client down")
        if response is UncaughtExceptionResponse.SHUTDOWN_APPLICATION:
            for thread in [one for one in self._pool.threads if one.is_alive][:1]:
                thread.shuts_down_all = True  # only a member of the group can tell the others
        self._end_with(error)

    def _on_shutdown_requested(self) -> None:
        if self.state.is_running_or_rebalancing:
            self._end_with(StreamsError("Another instance has asked for the whole application to stop"))

    def _end_with(self, error: Exception, shut_down_all: StreamThread | None = None) -> None:
        """End the client with an error.

        Args:
            error: the failure; the client keeps the first one.
            shut_down_all: the calling thread, if it should tell the application's other instances to end too.
        """
        with self._lock:
            self.error = self.error or error  # if the client is being created, `start` checks it in the end
            if not self.state.is_running_or_rebalancing:
                return
            self._lifecycle.move(State.PENDING_ERROR)
        if shut_down_all is not None:
            for other in self._pool.threads:
                if other is not shut_down_all:
                    other.shutdown()
            shut_down_all.request_shutdown_of_all()  # may take as long as a rebalance; `close` shortens it
        self._begin_shutdown(None, State.ERROR)
        self._lifecycle.tell()

    def _begin_shutdown(self, leave_group: bool | None, end: State, broker_wait_s: float = CLOSE_WAIT_S) -> None:  # noqa: FBT001
        self._pool.shutdown(leave_group=leave_group, broker_wait_s=broker_wait_s)
        threading.Thread(
            target=self._finish_shutdown, args=(leave_group, end, broker_wait_s), name="millrace-shutdown", daemon=True
        ).start()

    def _finish_drain(self, threads: Sequence[StreamThread]) -> None:
        for thread in threads:
            thread.join()
        self._lifecycle.set(State.DRAINED)

    def _finish_shutdown(self, leave_group: bool | None, end: State, broker_wait_s: float) -> None:  # noqa: FBT001
        try:
            if not self._startup.is_over:
                if self._global_thread is not None:
                    self._global_thread.stop()
                self._startup.wait()
            # Also threads that were started meanwhile.
            self._pool.shutdown(leave_group=leave_group, broker_wait_s=broker_wait_s)
            for thread in self._pool.threads:
                thread.join()
            if self._global_thread is not None:
                self._global_thread.shutdown()
            self._housekeeping.stop()
            if self._credentials is not None:
                self._credentials.stop()
            if self._admin is not None:
                self._admin.close()
            self._directory.unlock()
            self._housekeeping.write_status(end)
            if self._health is not None and end is not State.ERROR:  # after a failure probes are answered until `close`
                self._health.close()
        finally:
            self._lifecycle.set(end)  # `wait` must not wait forever
