"""One instance of the application: the product's thread loops and state updaters, called step by step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol
from uuid import UUID

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.engine.task_state import TaskState
from millrace.instance.membership import MembershipFactory
from millrace.instance.resources import ThreadContext
from millrace.instance.state_directory import PROCESS_FILE, StateDirectory
from millrace.instance.stream_thread import StreamThread, ThreadLoop
from millrace.instance.task_manager import TaskManager
from millrace.kafka.client_settings import ClientSettings
from millrace.kafka.client_supplier import KafkaClientSupplier
from millrace.records import Headers, TaskId, TopicPartition
from millrace.testing.simulation.disk import Disks
from millrace.testing.simulation.host import Cluster, CrashedError, Host, Process
from millrace.testing.simulation.plan import Plan
from millrace.testing.simulation.scheduler import Event
from millrace.topology.physical_topology import BuiltTopology

__all__ = ["Instance", "Surroundings", "Thread"]

_UNWIND_S: Final = 0.05
_RESTART_AFTER_DEATH_S: Final = 1.0
_STANDBY_STEP_S: Final = 0.3
"""The longest wait of the updater between two checks of changelogs, if it only has standbys."""
_SLOW_STANDBYS: Final = 0.1
_SLOW_STANDBY_S: Final = 10.0
"""How long it waits now and then, so that a standby is behind when it becomes active."""
_LATE_UPDATES: Final = 5.0
"""How many requests' time it may be before it begins with new tasks."""
_BEHIND_STEP_S: Final = 1.0
"""Its longest wait while it gets no records."""
_LONGEST_WAIT_S: Final = 1.0
"""How long thread and updater wait at most between two looks at tasks that are being restored, while nothing happens.

In reality they look more often. But most of these looks would only find that an outage or a transaction takes longer.
"""


class Surroundings(Cluster, Protocol):
    """The part of the world that an instance needs."""

    topology: BuiltTopology
    plan: Plan
    disks: Disks | None
    rng: Random
    current: Any
    """The stream thread whose code is running."""
    problem: str | None
    """Problems that an instance found while it ran."""

    def supplier(self, host: Host) -> KafkaClientSupplier:
        """Return the supplier of a process's clients."""

    def begin_record(self, partition: TopicPartition, offset: int) -> float:
        """Note that a record is about to be processed; return how long the application's code takes for it."""

    def took_over(self, host: Host, generation: int, partitions: Iterable[TopicPartition]) -> None:
        """Note that a process is about to restore a task from these changelogs, in order to run it."""


class _Trace:
    """The product's tracing hooks, through which the simulation learns which records are processed, and in which order."""

    def __init__(self, world: Surroundings, host: Host) -> None:
        self._world = world
        self._host = host

    @contextmanager
    def record(self, task_id: TaskId, topic: str, partition: int, offset: int, headers: Headers) -> Iterator[None]:
        del headers
        read = TopicPartition(topic, partition)
        self._host.processed.append((task_id, read, offset))
        takes_s = self._world.begin_record(read, offset)
        if takes_s:
            self._host.take_time(takes_s)
        yield

    def inject(self, topic: str, headers: Headers) -> Headers:
        del topic
        return headers

    def poll(self, thread: str) -> AbstractContextManager[Any]:
        del thread
        return nullcontext(self)

    def received(self, records: int) -> None:
        del records

    def process_batch(self, thread: str, task_id: TaskId, max_records: int) -> AbstractContextManager[object]:
        del thread, task_id, max_records
        return nullcontext()

    def send(self, thread: str) -> AbstractContextManager[object]:
        del thread
        return nullcontext()

    def commit(
        self, thread: str, task_ids: Collection[TaskId], *, exactly_once: bool
    ) -> AbstractContextManager[object]:
        del thread, task_ids, exactly_once
        return nullcontext()


class Thread:
    """One stream thread of an instance with its state updater, called step by step.

    Args:
        instance: whose it is.
        number: from 1.
        process: the instance's.
    """

    def __init__(self, instance: Instance, number: int, process: Process) -> None:
        self._instance = instance
        self._world = world = instance.world
        self.host = Host(world, instance.number, self.wake, process)
        self._thread = StreamThread(number, instance.context(self.host), lambda *_: None, lambda *_: None)
        self._loop: ThreadLoop | None = None
        self._next: Event | None = None
        self._next_update: Event | None = None
        self._idle_rounds = 0
        """Rounds since something last woke the thread."""
        self._idle_updates = 0
        """Steps of the updater since it last read anything, or was woken."""
        self._restoring: dict[TaskId, StreamTask] = {}
        """The tasks that were being restored after the last round."""
        self.busy = False
        """Whether its code is running, or waits."""

    @property
    def tasks(self) -> TaskManager | None:
        """Its tasks; None before it has begun, and after its end."""
        return None if self._loop is None or self.host.ended else self._loop.tasks

    @property
    def member_id(self) -> str:
        """Its id in the group."""
        return "" if self._loop is None else self._loop.resources.member.client.member_id

    @property
    def is_settled(self) -> bool:
        """Whether all its tasks run, nothing waits to be committed, and it knows the group's generation."""
        tasks = self.tasks
        if self.busy or tasks is None or self._loop is None or self._is_frozen:
            return False
        member = self._loop.resources.member
        if member.rebalancing or member.generation != self._world.group.generation:
            return False
        if any(task.commit_needed for task in tasks.running.values()):
            return False
        return tasks.all_running and all(self._is_up_to_date(task) for task in tasks.standby.values())

    def _is_up_to_date(self, standby: StreamTask) -> bool:
        """Whether a standby has applied everything that can be read of its changelogs."""
        assert self._loop is not None
        positions = self._loop.resources.updater.positions()
        for partition in standby.changelogs:
            last = next(reversed(self._world.broker.log(partition).committed()), None)
            if partition not in positions or (last is not None and positions[partition] <= last.offset):
                return False
        return True

    @property
    def _is_frozen(self) -> bool:
        return self.host.frozen_until_s > self._world.scheduler.now_s

    # Life

    def start(self) -> None:
        """Open its clients."""
        self._step(self._open)

    def _open(self) -> None:
        self._loop = self._thread.begin()
        self._loop.start()

    def shutdown(self, *, leave_group: bool | None) -> None:
        """Ask it to commit and end."""
        self._thread.shutdown(leave_group=leave_group)
        self.wake()

    def wake(self) -> None:
        """Run the next round soon, if the thread waits."""
        self._idle_rounds = 0
        if self._next is not None and not self.busy and not self._is_frozen:
            self._next.cancel()
            self._next = self._world.scheduler.later(self._world.rng.random() * 0.003, self._round)

    def wake_updater(self) -> None:
        """Run its next step soon, if the updater waits for records."""
        if self.host.alive and self._idle_updates and self._next_update is not None and not self._is_frozen:
            self._idle_updates = 0
            self._next_update.cancel()
            self._update_later(self._world.rng.random() * 0.003)

    # Steps

    def _step(self, step: Callable[[], None]) -> None:
        """Take a step, and handle its consequences."""
        outer, self._world.current = self._world.current, self._thread
        self.busy = True
        failure: BaseException | None = None
        try:
            step()
        except (CrashedError, Exception) as error:
            failure = error
        finally:
            self.busy = False
            self._world.current = outer
        if not self.host.alive:
            self.bury()
        elif failure is not None or self._thread.stop_requested.is_set():
            self._end(failure)
        else:
            self._next = self._world.scheduler.later(max(self._idle_s(), self._world.rng.random() * 0.005), self._round)

    def _idle_s(self) -> float:
        """Return how long to wait before the next round."""
        self._idle_rounds += 1
        if self.tasks is not None and self.tasks.restoring:
            return _longer(self.host.idle_s, self._idle_rounds)
        return self.host.idle_s

    def _round(self) -> None:
        assert self._loop is not None
        if self._is_frozen:
            self._next = self._world.scheduler.later(
                self.host.frozen_until_s - self._world.scheduler.now_s, self._round
            )
            return
        self._next = None
        self.host.idle_s = 0.0
        self._step(self._loop.round)
        tasks = self.tasks
        if tasks is None:
            return
        generation = self._loop.resources.member.generation
        for task_id, task in tasks.restoring.items():
            if self._restoring.get(task_id) is not task:
                self.host.forget(task_id)
                self._world.took_over(self.host, generation, task.changelogs)
        self._restoring = tasks.restoring.copy()
        if (tasks.restoring or tasks.standby) and self._next_update is None:
            late_s = _LATE_UPDATES * self._world.plan.request_s
            if late_s:
                self._update_later(self._world.rng.random() * late_s)
            else:
                self._next_update = self._world.scheduler.soon(self._update)

    def _update_later(self, delay_s: float) -> None:
        self._next_update = self._world.scheduler.later(delay_s, self._update)

    def _update(self) -> None:
        """Take a step of the state updater."""
        host = self.host
        if not host.alive or self._loop is None:
            return
        self._next_update = None
        if self._is_frozen:
            self._update_later(host.frozen_until_s - self._world.scheduler.now_s)
            return
        host.updater_idle_s = 0.0
        try:
            more = self._loop.resources.updater.step()
        except CrashedError:
            return
        for task in self._loop.resources.updater.tasks():
            if task.state is TaskState.CLOSED:
                self._world.problem = (
                    self._world.problem or f"Instance {host.number} restores task {task.task_id}, which is closed"
                )
        self._idle_updates = self._idle_updates + 1 if host.updater_idle_s or not more else 0
        tasks = self.tasks
        is_behind = self._world.is_behind(host.number)
        if tasks is not None and tasks.restoring and not self._idle_updates:
            self.wake()
        if tasks is not None and (tasks.restoring or tasks.standby):
            rng = self._world.rng
            if is_behind:
                between_s = _BEHIND_STEP_S
            elif tasks.restoring:
                between_s = _longer(0.05, self._idle_updates) if self._idle_updates else 0.005
            else:
                self._idle_updates = 0  # a standby is updated late now and then
                between_s = _SLOW_STANDBY_S if rng.random() < _SLOW_STANDBYS else _STANDBY_STEP_S
            delay_s = host.updater_waits_s + rng.random() * between_s
            host.updater_waits_s = 0.0
            self._update_later(delay_s)

    def _end(self, failure: BaseException | None) -> None:
        """End as the product does; the instance's other threads then end, too, and it starts again after a while."""
        if failure is not None:
            self._world.scheduler.note("died", self.host.number, type(failure).__name__)
            self._instance.deaths.append(failure)
        self.busy = True
        try:
            self._thread.end(clean=failure is None)
        except CrashedError:
            pass
        finally:
            self.busy = False
        self.bury()
        if self._instance.is_up:
            self._instance.shut_down(leave_group=None)
        else:
            self._world.scheduler.later(_RESTART_AFTER_DEATH_S, self._instance.start)

    def bury(self) -> None:
        """Release what the thread had open, as the operating system would; nothing is written."""
        self.host.ended = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._loop is not None:
            tasks = self._loop.tasks
            for task in (*tasks.running.values(), *tasks.restoring.values(), *tasks.standby.values()):
                with suppress(Exception, CrashedError):
                    task.close_dirty()
        self._next_update = None
        self._instance.release()


class Instance:
    """An instance that can crash, lose its disk, stop and start again.

    Args:
        world: where it runs.
        number: from 0; part of its static members' names.
        config: the application's settings; the instance adds its own.
        folder: its disk.
    """

    def __init__(self, world: Surroundings, number: int, config: StreamsConfig, folder: Path) -> None:
        self.world = world
        self.number = number
        self._config = config
        self._folder = folder
        self._process: Process | None = None
        self._directory: StateDirectory | None = None
        self.threads: list[Thread] = []
        """Its stream threads; after the process has ended only until it has released everything it had open."""
        self.deaths: list[BaseException] = []
        """The errors that ended its threads."""

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self._process is not None

    @property
    def running(self) -> dict[TaskId, StreamTask]:
        """The active tasks that run in it."""
        return {key: task for one in self.threads if one.tasks for key, task in one.tasks.running.items()}

    @property
    def standby(self) -> dict[TaskId, StreamTask]:
        """Its standbys."""
        return {key: task for one in self.threads if one.tasks for key, task in one.tasks.standby.items()}

    @property
    def member_ids(self) -> list[str]:
        """Its threads' ids in the group."""
        return [thread.member_id for thread in self.threads]

    @property
    def is_settled(self) -> bool:
        """Whether it is up, and all its threads are settled."""
        return bool(self.threads) and all(thread.is_settled for thread in self.threads)

    # Life

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._process is not None:
            if not self._process.alive:  # it has crashed while it waited, and that wait is about to end
                self.world.scheduler.later(_UNWIND_S, self.start)
            return
        self._process = process = Process()
        self.world.scheduler.note("start", self.number)
        self._directory = directory = StateDirectory(self._config.model_copy(update={"state_dir": str(self._folder)}))
        process_file = directory.path / PROCESS_FILE
        if not process_file.exists():
            process_file.parent.mkdir(parents=True, exist_ok=True)
            process_file.write_text(json.dumps({"processId": str(UUID(int=self.number + 1))}))
        directory.lock()
        numbers = range(1, self._config.num_stream_threads + 1)
        self.threads = threads = [Thread(self, number, process) for number in numbers]
        for thread in threads:
            if thread.host.alive:  # the process may have crashed while another one waited
                thread.start()
            elif not thread.host.ended:
                thread.bury()

    def context(self, host: Host) -> ThreadContext:
        """Return a thread's resources, whose clients see it as this host."""
        world, directory = self.world, self._directory
        assert directory is not None
        supplier = world.supplier(host)
        config = self._config.model_copy(update={"state_dir": str(self._folder), "default_client_supplier": supplier})
        settings = ClientSettings(config, str(directory.process_id))
        admin = supplier.admin({})
        return ThreadContext(
            topology=world.topology,
            config=config,
            settings=settings,
            directory=directory,
            admin=admin,
            new_membership=MembershipFactory(world.topology, config, settings, directory, admin),
            on_shutdown_requested=lambda: None,
            cache_max_bytes=lambda: config.statestore_cache_max_bytes // config.num_stream_threads,
            instrumentation=_Trace(world, host),
        )

    def crash(self) -> None:
        """End the process without notice; data not written to disk is lost."""
        if self._process is None:
            return
        self.world.scheduler.note("crash", self.number)
        self._process.alive = False
        if self.world.disks is not None:
            self.world.disks.crash(self._folder)
        for thread in list(self.threads):
            if not thread.busy and not thread.host.ended:
                thread.bury()

    def lose_disk(self) -> None:
        """Crash, and lose everything on disk."""
        self.crash()
        if self._process is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        """Ask the threads to commit and end."""
        if self._process is not None:
            self.world.scheduler.note("stop", self.number)
            self.shut_down(leave_group=self.world.rng.random() < 0.5)

    def shut_down(self, *, leave_group: bool | None) -> None:
        """Ask the threads that are left to commit and end."""
        for thread in list(self.threads):
            if not thread.host.ended:
                thread.shutdown(leave_group=leave_group)

    def release(self) -> None:
        """Release the directory once all threads have ended."""
        if not all(thread.host.ended for thread in self.threads):
            return
        self._process, self.threads = None, []
        if self._directory is not None:
            self._directory.unlock()
            self._directory = None

    def wake(self) -> None:
        """Run the threads' next rounds soon, and the next steps of their updaters."""
        for thread in self.threads:
            thread.wake()
            thread.wake_updater()

    def wake_readers(self, partition: TopicPartition) -> None:
        """Let threads and updaters look soon for awaited records in a partition."""
        for thread in self.threads:
            if partition in thread.host.reading:
                thread.wake()
            if partition in thread.host.restoring:
                thread.wake_updater()


def _longer(wait_s: float, idle: int) -> float:
    """Return how long to wait next if the last few waits brought nothing."""
    return min(wait_s * 2.0 ** min(idle, 10), max(wait_s, _LONGEST_WAIT_S))
