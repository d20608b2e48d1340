"""The directory that holds an application's state on this machine (formats §9), and who may use it.

One process at a time owns `<state.dir>/<application.id>`: it holds a lock on `.lock` for as long as it runs, with the same
kind of file lock that Java takes, so the two also exclude each other. Within the process a map says which thread owns which
task directory. A directory that nobody owns is kept for `state.cleanup.delay.ms`, because the task may come back.

The age of a task's state is counted from its directory's modification time. Stores write in subdirectories, which does not
change it; so it is set when a task is opened or closed, and now and then in between, in case of a crash (`touch_owned`).

Every failure of the file system becomes a `StateDirectoryError` that says what to do, since the cause is always the machine
(permissions, a full or read-only volume), never the program.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from millrace.config import StreamsConfig
from millrace.errors import LockError, StateDirectoryError
from millrace.records import TaskId

__all__ = ["LOCK_FILE", "PROCESS_FILE", "StateDirectory", "explain"]

LOCK_FILE = ".lock"
PROCESS_FILE = "kafka-streams-process-metadata"
GLOBAL_DIRECTORY = "global"
MINIMUM_FREE_BYTES = 1 << 20
"""A volume with less free space than this counts as full: RocksDB could not even write its manifest."""

_TOUCH_EVERY_S = 60.0
_MODE = 0o750
_MODE_GROUP_WRITE = 0o770
_TASK_NAME = re.compile(r"^\d+_\d+$")
_TRASH = ".deleted"
_log = logging.getLogger(__name__)

_held: set[Path] = set()
_held_guard = threading.Lock()
"""A POSIX lock does not exclude its own process, so two instances in one process exclude each other here."""


def explain(error: OSError, path: Path, doing: str) -> StateDirectoryError:
    """Turn a file-system error into one that says what to do.

    Args:
        error: The operating system's error.
        path: The file or directory.
        doing: The failed action, for example "create the state directory".
    """
    advice = {
        errno.EACCES: "give the user that runs the application write permission on it (on Kubernetes: fsGroup)",
        errno.EPERM: "give the user that runs the application write permission on it (on Kubernetes: fsGroup)",
        errno.EROFS: "the volume is mounted read-only: mount it writable, or set state.dir to another place",
        errno.ENOSPC: "the volume is full: free space or make it larger; state is rebuilt from the changelogs, so the "
        "application's directory may be deleted while it is stopped",
        errno.EDQUOT: "the disk quota is used up: raise it or free space",
        errno.ENOTDIR: "a part of the path is a file: set state.dir to a directory",
        errno.EEXIST: "there is a file of that name: set state.dir to a directory",
    }.get(error.errno or 0, "check that state.dir names a directory this process may write to")
    return StateDirectoryError(f"Cannot {doing} {path}: {error.strerror or error}. To fix it: {advice}")


class StateDirectory:
    """The state directory of one application instance.

    Args:
        config: has `state.dir`, the application id and the clean-up settings.
        persistent: whether the topology keeps anything on disk. If not, nothing is created or locked, and the process
            id is new each time, so that stateless instances may share a machine.

    Example:
        >>> directory = StateDirectory(StreamsConfig.of({"application.id": "wc", "state.dir": "/data"}))
        >>> str(directory.path)
        '/data/wc'
    """

    def __init__(self, config: StreamsConfig, *, persistent: bool = True) -> None:
        self._persistent = persistent
        self.path = Path(config.state_dir).absolute() / config.application_id
        self._config = config
        self._mode = _MODE_GROUP_WRITE if config.allow_os_group_write_access else _MODE
        self._lock_fd: int | None = None
        self._guard = threading.Lock()
        self._owners: dict[TaskId, str] = {}
        self._offset_sums: dict[TaskId, int] = {}
        """How far the state on disk of tasks that are not open is, as far as known."""
        self.version = object()
        """Another object after each change to the answer of `offset_sums`, except that the asking thread has opened a task."""
        self._process_id: uuid.UUID | None = None

    @property
    def process_id(self) -> uuid.UUID:
        """The id of this instance, stored in the directory so that it survives restarts; known once locked."""
        if self._process_id is None:
            raise StateDirectoryError(f"{self.path} is not locked yet: call lock() before asking for the process id")
        return self._process_id

    @property
    def persistent(self) -> bool:
        """Whether anything is kept on disk."""
        return self._persistent

    @property
    def global_path(self) -> Path:
        """Where the global stores live."""
        return self.path / GLOBAL_DIRECTORY

    def lock(self) -> None:
        """Create the directory, take its lock and read or write the process id.

        Raises:
            LockError: another process, or another instance in this one, holds the lock.
            StateDirectoryError: the directory cannot be created or written to.
        """
        if not self._persistent:
            self._process_id = uuid.uuid4()
            return
        self._create()
        with _held_guard:
            if self.path in _held:
                raise LockError(self._locked_message(os.getpid()))
            self._lock_fd = self._take_lock()
            _held.add(self.path)
        try:
            self._check_space()
            self._wipe_old()
            self._process_id = self._read_or_write_process_id()
        except OSError as error:
            self.unlock()
            raise explain(error, self.path, "write to the state directory") from error
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Release the lock; does nothing if it is not held."""
        with _held_guard:
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None
                _held.discard(self.path)

    def task_path(self, task_id: TaskId) -> Path:
        """Return a task's directory, which may not exist."""
        return self.path / str(task_id)

    def own_task(self, task_id: TaskId, owner: str) -> Path | None:
        """Take a task's directory for a thread, and create it if necessary.

        Returns:
            The directory, or None while another thread of this process still owns it.

        Raises:
            StateDirectoryError: it cannot be created.
        """
        with self._guard:
            if self._owners.setdefault(task_id, owner) != owner:
                return None
            path = self.task_path(task_id)
            try:
                if self._persistent:
                    path.mkdir(mode=self._mode, exist_ok=True)
                    os.utime(path)
            except OSError as error:
                del self._owners[task_id]
                raise explain(error, path, "create the task directory") from error
            finally:
                self.version = object()
            return path

    def disown_task(self, task_id: TaskId, owner: str) -> None:
        """Release a task's directory; does nothing if the thread does not own it."""
        with self._guard:
            if self._owners.get(task_id) == owner:
                del self._owners[task_id]
                self.version = object()
                with contextlib.suppress(OSError):  # only so that the clean-up delay starts now
                    os.utime(self.task_path(task_id))

    def touch_owned(self) -> None:
        """Mark the directories of owned tasks as in use now, so their age is right even after a crash."""
        for task_id in list(self._owners):
            with contextlib.suppress(OSError):  # it was wiped, or keeps nothing on disk
                os.utime(self.task_path(task_id))

    @property
    def touch_every_s(self) -> float:
        """How often to call `touch_owned`: often enough for `state.cleanup.dir.max.age.ms`."""
        age_ms = self._config.state_cleanup_dir_max_age_ms
        return _TOUCH_EVERY_S if age_ms < 0 else min(_TOUCH_EVERY_S, age_ms / 4000)

    def disown_all(self, owner: str) -> None:
        """Release every task directory that a thread owns, when the thread has ended."""
        for task_id in [task for task, name in list(self._owners.items()) if name == owner]:
            self.disown_task(task_id, owner)

    def tasks_on_disk(self) -> list[TaskId]:
        """Return the tasks that have a non-empty directory here."""
        found = []
        for entry in self._task_directories():
            with contextlib.suppress(FileNotFoundError):  # another thread has deleted it meanwhile
                if next(entry.iterdir(), None) is not None:
                    found.append(TaskId.parse(entry.name))
        return sorted(found)

    def offset_sums(self, owner: str, read: Callable[[TaskId], int]) -> dict[TaskId, int]:
        """Return the offset sum of each task on disk that no thread other than `owner` owns.

        Args:
            owner: the thread that asks.
            read: returns the sum of a task's changelog offsets on disk; called once per task, while no other thread can open it.
        """
        sums: dict[TaskId, int] = {}
        for task_id in self.tasks_on_disk():
            with self._guard:
                if self._owners.get(task_id, owner) == owner:
                    if task_id not in self._offset_sums:
                        self._offset_sums[task_id] = read(task_id)
                    sums[task_id] = self._offset_sums[task_id]
        return sums

    def note_offset_sum(self, task_id: TaskId, offset_sum: int) -> None:
        """Remember the offset sum of a task that is being closed."""
        with self._guard:
            self._offset_sums[task_id] = offset_sum
            self.version = object()

    def wipe_task(self, task_id: TaskId) -> None:
        """Delete a task's state, so that it is restored from the changelogs.

        Raises:
            StateDirectoryError: a file cannot be deleted.
        """
        path = self.task_path(task_id)
        with self._guard:
            self._offset_sums.pop(task_id, None)
        try:
            if path.exists():
                _delete(path)
            if self._persistent:
                path.mkdir(mode=self._mode, exist_ok=True)
        except OSError as error:
            raise explain(error, path, "delete the state in") from error
        finally:
            self.version = object()

    def clean_idle(self, now_s: float | None = None) -> list[TaskId]:
        """Delete the directories of tasks that nobody owns and that have not been used for `state.cleanup.delay.ms`.

        Args:
            now_s: The time, in seconds since the epoch; now if not given.
        """
        oldest = (time.time() if now_s is None else now_s) - self._config.state_cleanup_delay_ms / 1000
        removed = []
        unfinished = sorted(self.path.glob(f"*_*{_TRASH}"))
        for entry in (*self._task_directories(), *unfinished):
            task_id = TaskId.parse(entry.name.removesuffix(_TRASH))
            with self._guard:
                try:
                    if task_id in self._owners or entry.stat().st_mtime > oldest:
                        continue
                    self._offset_sums.pop(task_id, None)
                    _delete(entry)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    _log.warning("%s", explain(error, entry, "delete the unused state in"))
                    continue
                finally:
                    self.version = object()
                removed.append(task_id)
        if removed:
            _log.info("Deleted the state of %s in %s: not used for a while", ", ".join(map(str, removed)), self.path)
        return removed

    def clean_up(self) -> None:
        """Delete everything while no other process uses the directory; see `delete_all`.

        Raises:
            LockError: another process, or another instance in this one, uses it.
            StateDirectoryError: a file cannot be deleted.
        """
        self.lock()
        try:
            self.delete_all()
        finally:
            self.unlock()

    def delete_all(self) -> None:
        """Delete everything except the lock: all state and the process id.

        Raises:
            StateDirectoryError: tasks are still open, or a file cannot be deleted.
        """
        if self._owners:
            tasks = ", ".join(map(str, sorted(self._owners)))
            raise StateDirectoryError(
                f"Cannot clean up {self.path}: tasks {tasks} are open; close the application first"
            )
        self._offset_sums.clear()
        try:
            for entry in list(self.path.iterdir()) if self.path.exists() else ():
                if entry.name == LOCK_FILE:
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    _delete(entry)
                else:
                    entry.unlink()
        except OSError as error:
            raise explain(error, self.path, "clean up") from error
        finally:
            self.version = object()

    def _create(self) -> None:
        base = self.path.parent
        try:
            for path in (base, self.path):
                if not path.is_dir():
                    path.mkdir(parents=True, mode=self._mode, exist_ok=True)
                    path.chmod(self._mode)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise explain(error, self.path, "create the state directory") from error

    def _take_lock(self) -> int:
        path = self.path / LOCK_FILE
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise explain(error, path, "open the lock file") from error
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise LockError(self._locked_message(int(holder) if holder.isdigit() else None)) from None
            raise explain(error, path, "lock") from error
        with contextlib.suppress(OSError):  # the pid is only a hint for other processes that find the directory locked
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        return fd

    def _locked_message(self, pid: int | None) -> str:
        holder = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
        return (
            f"The state directory {self.path} is in use by {holder}. Two instances of an application on one machine need "
            "different state.dir settings; if the other one should not run, stop it"
        )

    def _check_space(self) -> None:
        usage = os.statvfs(self.path)
        if usage.f_bavail * usage.f_frsize < MINIMUM_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _wipe_old(self) -> None:
        for trash in self.path.glob(f"*{_TRASH}"):
            shutil.rmtree(trash)
        limit_ms = self._config.state_cleanup_dir_max_age_ms
        if limit_ms < 0:
            return
        for entry in self._task_directories():
            if time.time() - entry.stat().st_mtime > limit_ms / 1000:
                _log.info("Deleting %s: older than state.cleanup.dir.max.age.ms", entry)
                _delete(entry)

    def _read_or_write_process_id(self) -> uuid.UUID:
        path = self.path / PROCESS_FILE
        metadata: dict[str, object] = {}
        try:
            metadata = json.loads(path.read_text())
            return uuid.UUID(str(metadata["processId"]))
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("Cannot read %s (%s): this instance gets a new process id", path, error)
            metadata = metadata if isinstance(metadata, dict) else {}
        process_id = uuid.uuid4()
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("w") as file:
            json.dump({**metadata, "processId": str(process_id)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        return process_id

    def _task_directories(self) -> Iterator[Path]:
        if self.path.is_dir():
            yield from sorted(path for path in self.path.iterdir() if _TASK_NAME.match(path.name) and path.is_dir())


def _delete(path: Path) -> None:
    """Delete a directory, after renaming it: a process that dies leaves its state either complete or hidden.

    A store with segments has a database for each, and would seem complete if only some of them were left.
    """
    trash = path.with_suffix(_TRASH)
    if trash != path:
        if trash.exists():
            shutil.rmtree(trash)
        path.rename(trash)
    shutil.rmtree(trash)
