"""One instance of the application: the product's thread loop and state updater, called step by step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from millrace.config import StreamsConfig
from millrace.engine.task import StreamTask
from millrace.instance.membership import MembershipFactory
from millrace.instance.resources import ThreadContext
from millrace.instance.state_directory import PROCESS_FILE, StateDirectory
from millrace.instance.stream_thread import StreamThread, ThreadLoop
from millrace.instance.task_manager import TaskManager
from millrace.kafka.client_settings import ClientSettings
from millrace.records import Headers, TaskId, TopicPartition
from millrace.testing.simulation.plan import Fault
from millrace.testing.simulation.scheduler import Event

if TYPE_CHECKING:
    from millrace.testing.simulation.world import World

__all__ = ["CrashedError", "Host", "Instance", "Processed"]

_Answer = TypeVar("_Answer")
_UNWIND_S: Final = 0.05
_RESTART_AFTER_DEATH_S: Final = 1.0
_STANDBY_STEP_S: Final = 0.3
"""How long the updater waits at most between two looks at changelogs, if it has standbys only."""
_SLOW_STANDBYS: Final = 0.1
_SLOW_STANDBY_S: Final = 10.0
"""How long it waits now and then, so that a standby is behind when it becomes active."""
_BEHIND_STEP_S: Final = 1.0
"""How long it waits at most while it gets no records."""
_BEHIND_ROUND_S: Final = 0.2
"""How long the thread waits meanwhile between two rounds, if it has tasks that are being restored."""

Processed = tuple[TaskId, TopicPartition, int]
"""Task, input partition and offset of a record that was processed."""


class CrashedError(BaseException):
    """The process that makes this call has ended: nothing of it may catch this and go on."""


class Host:
    """One process, from its start to its end, as its clients see it.

    Args:
        world: where it runs.
        number: the instance's.
        wake: called when something has happened that its thread may be waiting for.
    """

    def __init__(self, world: World, number: int, wake: Callable[[], None]) -> None:
        self.world = world
        self.number = number
        self.wake = wake
        self.alive = True
        self.frozen_until_s = 0.0
        """Until when nothing in it runs."""
        self.updater_waits_s = 0.0
        """How long its state updater waits before its next step."""
        self.idle_s = 0.0
        """How long its thread waits before its next round."""
        self.processed: list[Processed] = []
        """What its thread has processed since its last commit."""
        self.reading: set[TopicPartition] = set()
        """Partitions that it has read at any time."""

    def require_alive(self) -> None:
        """Raise CrashedError if the process has ended."""
        if not self.alive:
            raise CrashedError

    def call(self, name: str, request: Callable[[], _Answer], lost: Callable[[], Exception] | None = None) -> _Answer:
        """Make a request to the cluster, with the fault that is planned for it, if any.

        Args:
            name: the request's, in faults.
            request: does it.
            lost: returns what to raise if it or its answer is lost; None = the client would just send it again.
        """
        self.require_alive()
        fault = self.world.fault_at(self.number, name)
        if fault is None:
            answer = request()
            self.require_alive()
            return answer
        if fault.kind == "crash before":
            self.world.crash(fault)
        elif fault.kind in {"pause before", "freeze before"}:
            self._pause(fault)
        self.require_alive()
        if fault.kind == "lost request" and lost is not None:
            raise lost()
        answer = request()
        self.require_alive()
        if fault.kind == "crash after":
            self.world.crash(fault)
        elif fault.kind in {"pause after", "freeze after"}:
            self._pause(fault)
        self.require_alive()
        if fault.kind == "lost answer" and lost is not None:
            raise lost()
        return answer

    def _pause(self, fault: Fault) -> None:
        scheduler = self.world.scheduler
        if fault.call == "restore":  # the stream thread must find its updater between two steps, not inside one
            self.updater_waits_s = fault.seconds
            return
        if fault.kind.startswith("freeze"):
            self.frozen_until_s = scheduler.now_s + fault.seconds
        scheduler.wait_for(lambda: not self.alive, fault.seconds)


class _Trace:
    """The product's hooks for tracing, which tell the simulation what is processed, in which order."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @contextmanager
    def record(self, task_id: TaskId, topic: str, partition: int, offset: int, headers: Headers) -> Iterator[None]:
        del headers
        self._host.processed.append((task_id, TopicPartition(topic, partition), offset))
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


class Instance:
    """An instance that can crash, lose its disk, stop and start again.

    Args:
        world: where it runs.
        number: from 0; part of its static member's name.
        config: the application's settings; the instance adds its own.
        folder: its disk.
    """

    def __init__(self, world: World, number: int, config: StreamsConfig, folder: Path) -> None:
        self._world = world
        self.number = number
        self._config = config
        self._folder = folder
        self._host: Host | None = None
        self._thread: StreamThread | None = None
        self._loop: ThreadLoop | None = None
        self._directory: StateDirectory | None = None
        self._next: Event | None = None
        self._updating = False
        self._restoring: dict[TaskId, StreamTask] = {}
        """The tasks that were being restored after the last round."""
        self._busy = False
        self.deaths: list[BaseException] = []
        """What has ended its thread."""

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self._host is not None

    @property
    def tasks(self) -> TaskManager | None:
        """Its tasks; None while it is down."""
        return None if self._loop is None or self._host is None else self._loop.tasks

    @property
    def is_settled(self) -> bool:
        """Whether all its tasks run, nothing waits to be committed, and it knows the group's generation."""
        tasks = self.tasks
        if self._busy or tasks is None or self._loop is None or self._is_frozen:
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
        return self._host is not None and self._host.frozen_until_s > self._world.scheduler.now_s

    def reads(self, partition: TopicPartition) -> bool:
        """Whether it has read a partition since it was started."""
        return self._host is not None and partition in self._host.reading

    # Life

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self._host is not None:
            if not self._host.alive:  # it has crashed while it waited, and that wait is about to end
                self._world.scheduler.later(_UNWIND_S, self.start)
            return
        world = self._world
        self._host = host = Host(world, self.number, self.wake)
        world.scheduler.note("start", self.number)
        config = self._config.model_copy(
            update={"state_dir": str(self._folder), "default_client_supplier": world.supplier(host)}
        )
        self._directory = directory = StateDirectory(config)
        process_file = directory.path / PROCESS_FILE
        if not process_file.exists():
            process_file.parent.mkdir(parents=True, exist_ok=True)
            process_file.write_text(json.dumps({"processId": str(UUID(int=self.number + 1))}))
        directory.lock()
        settings = ClientSettings(config, str(directory.process_id))
        admin = world.supplier(host).admin({})
        context = ThreadContext(
            topology=world.topology,
            config=config,
            settings=settings,
            directory=directory,
            admin=admin,
            new_membership=MembershipFactory(world.topology, config, settings, directory, admin),
            on_shutdown_requested=lambda: None,
            cache_max_bytes=lambda: config.statestore_cache_max_bytes,
            instrumentation=_Trace(host),
        )
        self._thread = StreamThread(1, context, lambda *_: None, lambda *_: None)
        self._step(self._open)

    def _open(self) -> None:
        assert self._thread is not None
        self._loop = self._thread.begin()
        self._loop.start()

    def crash(self) -> None:
        """End the process without any notice; what was not written to disk is lost."""
        host = self._host
        if host is None:
            return
        self._world.scheduler.note("crash", self.number)
        host.alive = False
        if not self._busy:
            self._bury()

    def lose_disk(self) -> None:
        """Crash, and lose everything on disk."""
        self.crash()
        if self._host is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def stop(self) -> None:
        """Ask the thread to commit and end."""
        if self._thread is not None and self._host is not None:
            self._world.scheduler.note("stop", self.number)
            self._thread.shutdown(leave_group=self._world.rng.random() < 0.5)
            self.wake()

    def wake(self) -> None:
        """Have the next round soon, if the thread waits."""
        if self._next is not None and not self._busy and not self._is_frozen:
            self._next.cancel()
            self._next = self._world.scheduler.later(self._world.rng.random() * 0.003, self._round)

    # Steps

    def _step(self, step: Callable[[], None]) -> None:
        """Take a step of the thread, and whatever follows from it."""
        host, thread = self._host, self._thread
        assert host is not None
        assert thread is not None
        outer, self._world.current = self._world.current, thread
        self._busy = True
        failure: BaseException | None = None
        try:
            step()
        except (CrashedError, Exception) as error:
            failure = error
        finally:
            self._busy = False
            self._world.current = outer
        if not host.alive:
            self._bury()
        elif failure is not None or thread.stop_requested.is_set():
            self._end(failure)
        else:
            self._next = self._world.scheduler.later(
                max(self._idle_s(host), self._world.rng.random() * 0.005), self._round
            )

    def _idle_s(self, host: Host) -> float:
        """Return how long the thread waits before its next round."""
        if self.tasks is not None and self.tasks.restoring and self._world.is_behind(self.number):
            return max(host.idle_s, _BEHIND_ROUND_S)  # most of its rounds would only find that this takes longer
        return host.idle_s

    def _round(self) -> None:
        assert self._host is not None
        assert self._loop is not None
        if self._is_frozen:
            self._next = self._world.scheduler.later(
                self._host.frozen_until_s - self._world.scheduler.now_s, self._round
            )
            return
        self._next = None
        self._host.idle_s = 0.0
        self._step(self._loop.round)
        tasks = self.tasks
        if tasks is not None:
            for task_id, task in tasks.restoring.items():
                if self._restoring.get(task_id) is not task:
                    self._world.took_over(self._host, task.changelogs)
            self._restoring = tasks.restoring.copy()
        if tasks is not None and (tasks.restoring or tasks.standby) and not self._updating:
            self._updating = True
            host = self._host
            self._world.scheduler.soon(lambda: self._update(host))

    def _update(self, host: Host) -> None:
        """Take a step of the state updater."""
        self._updating = False
        if host is not self._host or not host.alive or self._loop is None:
            return
        if self._is_frozen:
            self._updating = True
            self._world.scheduler.later(host.frozen_until_s - self._world.scheduler.now_s, lambda: self._update(host))
            return
        try:
            more = self._loop.resources.updater.step()
        except CrashedError:
            return
        tasks = self.tasks
        is_behind = self._world.is_behind(self.number)
        if tasks is not None and tasks.restoring and not is_behind:
            self.wake()
        if tasks is not None and (tasks.restoring or tasks.standby):
            self._updating = True
            rng = self._world.rng
            if is_behind:
                between_s = _BEHIND_STEP_S
            elif tasks.restoring:
                between_s = 0.005 if more else 0.05
            else:
                between_s = _SLOW_STANDBY_S if rng.random() < _SLOW_STANDBYS else _STANDBY_STEP_S
            delay_s = host.updater_waits_s + rng.random() * between_s
            host.updater_waits_s = 0.0
            self._world.scheduler.later(delay_s, lambda: self._update(host))

    def _end(self, failure: BaseException | None) -> None:
        """End the thread as the product does, and start again after a while."""
        host, thread = self._host, self._thread
        assert host is not None
        assert thread is not None
        if failure is not None:
            self._world.scheduler.note("died", self.number, type(failure).__name__)
            self.deaths.append(failure)
        self._busy = True
        try:
            thread.end(clean=failure is None)
        except CrashedError:
            pass
        finally:
            self._busy = False
        host.alive = False
        self._bury()
        self._world.scheduler.later(_RESTART_AFTER_DEATH_S, self.start)

    def _bury(self) -> None:
        """Release what the process had open, as the operating system would; nothing is written."""
        self._host = None
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._loop is not None:
            tasks = self._loop.tasks
            for task in (*tasks.running.values(), *tasks.restoring.values(), *tasks.standby.values()):
                with suppress(Exception, CrashedError):
                    task.close_dirty()
        self._loop = self._thread = None
        self._updating = False
        self._restoring = {}
        if self._directory is not None:
            self._directory.unlock()
            self._directory = None
