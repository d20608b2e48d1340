"""The state directory: its lock, process id, modes, clean-up, and errors with advice."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import time
import uuid

import pytest
from tests import forked

from millrace.config import StreamsConfig
from millrace.errors import LockError, StateDirectoryError
from millrace.instance.state_directory import PROCESS_FILE, StateDirectory
from millrace.records import TaskId

TASK = TaskId(0, 1)


def directory(tmp_path, **settings):
    """Return the directory of the application `app`, unlocked."""
    return StateDirectory(StreamsConfig.of({"application.id": "app", "state.dir": tmp_path / "state", **settings}))


@pytest.fixture
def locked(tmp_path):
    """Yield a locked directory."""
    state = directory(tmp_path)
    state.lock()
    yield state
    state.unlock()


def test_directories_have_javas_mode(locked):
    """The base directory and the application's are rwxr-x---."""
    assert stat.S_IMODE(locked.path.stat().st_mode) == 0o750
    assert stat.S_IMODE(locked.path.parent.stat().st_mode) == 0o750


def test_group_write_access_is_given_when_asked_for(tmp_path):
    """With allow.os.group.write.access the directories are rwxrwx---."""
    state = directory(tmp_path, **{"allow.os.group.write.access": True})
    state.lock()
    try:
        assert stat.S_IMODE(state.path.stat().st_mode) == 0o770
    finally:
        state.unlock()


def test_process_id_survives_a_restart_and_keeps_unknown_fields(tmp_path):
    """The process file has the id under processId, and keeps fields of other versions."""
    known = uuid.uuid4()
    path = tmp_path / "state" / "app"
    path.mkdir(parents=True)
    (path / PROCESS_FILE).write_text(json.dumps({"processId": str(known), "later": 1}))
    state = directory(tmp_path)
    state.lock()
    state.unlock()
    assert state.process_id == known
    assert json.loads((path / PROCESS_FILE).read_text())["later"] == 1


def test_new_directory_gets_a_process_id(locked):
    """If there is no process file, one is written."""
    assert json.loads((locked.path / PROCESS_FILE).read_text()) == {"processId": str(locked.process_id)}


def test_broken_process_file_gives_a_new_id(tmp_path):
    """An unreadable process file does not stop the application from starting."""
    path = tmp_path / "state" / "app"
    path.mkdir(parents=True)
    (path / PROCESS_FILE).write_text("{")
    state = directory(tmp_path)
    state.lock()
    state.unlock()
    assert json.loads((path / PROCESS_FILE).read_text())["processId"] == str(state.process_id)


def test_second_instance_in_this_process_is_kept_out(locked, tmp_path):
    """Two instances of one application in one process cannot share the directory; the error names it."""
    with pytest.raises(LockError, match=r"state/app is in use by this process"):
        directory(tmp_path).lock()


def test_another_process_is_named_by_its_pid(tmp_path):
    """The error for a locked directory names the directory and the process that holds it."""
    code = (
        "import sys, time; from millrace.config import StreamsConfig;"
        "from millrace.instance.state_directory import StateDirectory;"
        f"d = StateDirectory(StreamsConfig.of({{'application.id': 'app', 'state.dir': {str(tmp_path / 'state')!r}}}));"
        "d.lock(); print('locked', flush=True); sys.stdin.read()"
    )
    with forked.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(LockError, match=f"in use by process {other.pid}"):
            directory(tmp_path).lock()
        assert other.stdin is not None
        other.stdin.close()
    state = directory(tmp_path)
    state.lock()
    state.unlock()


def test_lock_can_be_taken_again_after_unlock(tmp_path):
    """`unlock` releases the lock."""
    for _ in range(2):
        state = directory(tmp_path)
        state.lock()
        state.unlock()


def test_state_dir_below_a_file_is_explained(tmp_path):
    """A state.dir that cannot be a directory gives an error that says so."""
    (tmp_path / "state").write_text("")
    with pytest.raises(StateDirectoryError, match=r"Cannot create the state directory .*file.* set state.dir"):
        directory(tmp_path).lock()


@pytest.fixture
def small_volume(tmp_path):
    """Return a function that mounts a small file system at `tmp_path/state`, with options."""
    target = tmp_path / "state"
    target.mkdir()
    mounted = []

    def mount(options):
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", target], check=False, capture_output=True
        )
        if done.returncode:
            pytest.skip("mounting a file system needs privileges")
        mounted.append(target)

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)


def test_read_only_volume_is_explained(small_volume, tmp_path):
    """A read-only file system gives an error that says so and what to do."""
    small_volume("ro,size=1m")
    with pytest.raises(StateDirectoryError, match=r"[Rr]ead-only.*mount it writable"):
        directory(tmp_path).lock()


def test_full_volume_is_explained(small_volume, tmp_path):
    """A full file system is noticed at the start, and the error says what to do."""
    small_volume("size=64k")
    with pytest.raises(StateDirectoryError, match=r"volume is full: free space"):
        directory(tmp_path).lock()


def test_missing_permission_is_explained(tmp_path):
    """A directory without write permission gives an error that says so, even if the tests run as root."""
    tmp_path.chmod(0o555)
    libc = ctypes.CDLL(None)
    with contextlib.ExitStack() as cleanup:
        if os.geteuid() == 0:
            libc.setfsuid(65534)
            cleanup.callback(libc.setfsuid, 0)
        with pytest.raises(StateDirectoryError, match="permission"):
            directory(tmp_path).lock()


def test_a_task_directory_has_one_owner(locked):
    """A thread can take a task's directory only if no other thread of the process has it."""
    assert locked.own_task(TASK, "one") == locked.path / "0_1"
    assert locked.own_task(TASK, "one") is not None
    assert locked.own_task(TASK, "two") is None
    locked.disown_task(TASK, "two")
    assert locked.own_task(TASK, "two") is None
    locked.disown_all("one")
    assert locked.own_task(TASK, "two") is not None


def test_idle_task_directories_are_deleted_after_the_delay(locked):
    """Only old directories of tasks that nobody owns are deleted."""
    for task_id in (TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)):
        locked.own_task(task_id, "thread")
    locked.disown_task(TaskId(0, 0), "thread")
    locked.disown_task(TaskId(0, 2), "thread")
    old = time.time() - 700
    os.utime(locked.task_path(TaskId(0, 0)), (old, old))
    os.utime(locked.task_path(TaskId(0, 1)), (old, old))
    assert locked.clean_idle() == [TaskId(0, 0)]
    assert locked.task_path(TaskId(0, 1)).exists()
    assert locked.task_path(TaskId(0, 2)).exists()


def test_tasks_on_disk_are_those_with_state(locked):
    """Empty task directories do not count, and other directories are not tasks."""
    locked.own_task(TASK, "thread")
    locked.own_task(TaskId(1, 0), "thread")
    (locked.task_path(TASK) / "rocksdb").mkdir()
    (locked.path / "global").mkdir()
    assert locked.tasks_on_disk() == [TASK]


def test_a_directory_that_is_deleted_while_tasks_are_listed_is_left_out(locked, monkeypatch):
    """Idle directories are deleted, and damaged ones wiped, in other threads than the one that reports state to the group."""
    for task_id in (TASK, TaskId(1, 0)):
        locked.own_task(task_id, "thread")
        (locked.task_path(task_id) / "rocksdb").mkdir()
    is_dir = type(locked.path).is_dir

    def is_dir_until_now(path):
        found = is_dir(path)
        if path == locked.task_path(TASK):
            monkeypatch.undo()
            shutil.rmtree(path)
        return found

    monkeypatch.setattr(type(locked.path), "is_dir", is_dir_until_now)
    assert locked.tasks_on_disk() == [TaskId(1, 0)]


def test_offset_sums_are_read_once_and_noted_when_a_task_is_closed(locked):
    """Each task on disk is read once; a task of another thread is left out, and a wiped one is read again."""
    reads = []

    def read(task_id):
        reads.append(task_id)
        return 100

    for task_id in (TASK, TaskId(1, 0)):
        locked.own_task(task_id, "thread")
        (locked.task_path(task_id) / "rocksdb").mkdir()
    assert locked.offset_sums("other", read) == {}
    locked.disown_all("thread")
    assert locked.offset_sums("other", read) == locked.offset_sums("thread", read) == {TASK: 100, TaskId(1, 0): 100}
    assert reads == [TASK, TaskId(1, 0)]
    locked.note_offset_sum(TASK, 150)
    assert locked.offset_sums("other", read)[TASK] == 150
    locked.wipe_task(TASK)
    assert TASK not in locked.offset_sums("other", read)
    (locked.task_path(TASK) / "rocksdb").mkdir()
    assert locked.offset_sums("other", read)[TASK] == 100
    assert reads == [TASK, TaskId(1, 0), TASK]


def test_wiping_a_task_leaves_an_empty_directory(locked):
    """After a wipe the directory exists, without state."""
    locked.own_task(TASK, "thread")
    (locked.task_path(TASK) / "rocksdb").mkdir()
    locked.wipe_task(TASK)
    assert list(locked.task_path(TASK).iterdir()) == []


@pytest.mark.parametrize(
    "delete", ["wipe_task(TaskId(0, 1))", "clean_idle(time.time() + 1e6)", "delete_all()"], ids=["wipe", "idle", "all"]
)
def test_process_that_dies_while_it_deletes_state_leaves_all_or_nothing(tmp_path, delete):
    """A store has several databases, each with its own offset: with only some of them left it would seem complete."""
    state = directory(tmp_path)
    segments = [state.task_path(TASK) / "counts" / f"counts.{start}" for start in (0, 60_000, 120_000)]
    for segment in segments:
        segment.mkdir(parents=True)
        (segment / "CURRENT").touch()
    code = (
        "import os, sys, time\n"
        "from millrace.config import StreamsConfig\n"
        "from millrace.instance.state_directory import StateDirectory\n"
        "from millrace.records import TaskId\n"
        "state = StateDirectory(StreamsConfig.of({'application.id': 'app', 'state.dir': sys.argv[1]}))\n"
        "state.lock()\n"
        "deleted = []\n"
        "def die(event, _arguments):\n"
        "    if event in ('os.remove', 'os.rmdir'):\n"
        "        deleted.append(event)\n"
        "        if len(deleted) == 3:\n"
        "            os._exit(9)\n"
        "sys.addaudithook(die)\n"
        f"state.{delete}\n"
    )
    command = [sys.executable, "-c", code, str(state.path.parent)]
    child = forked.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert child.returncode == 9
    state.lock()
    try:
        assert {segment.exists() for segment in segments} == {False}
        assert [path.name for path in state.path.iterdir() if "deleted" in path.name] == []
    finally:
        state.unlock()


def test_delete_all_refuses_while_tasks_are_open_and_keeps_the_lock_file(locked):
    """Everything can be deleted only after all tasks are closed."""
    locked.own_task(TASK, "thread")
    with pytest.raises(StateDirectoryError, match=r"0_1 are open"):
        locked.delete_all()
    locked.disown_all("thread")
    locked.delete_all()
    assert [path.name for path in locked.path.iterdir()] == [".lock"]


def test_old_state_is_wiped_at_start_when_a_maximum_age_is_set(tmp_path):
    """With state.cleanup.dir.max.age.ms, a start deletes older task directories (KIP-1259)."""
    state = directory(tmp_path)
    state.lock()
    for task_id in (TaskId(0, 0), TaskId(0, 1)):
        state.own_task(task_id, "thread")
    state.disown_all("thread")
    state.unlock()
    old = time.time() - 100
    os.utime(state.task_path(TaskId(0, 0)), (old, old))
    again = directory(tmp_path, **{"state.cleanup.dir.max.age.ms": 50_000})
    again.lock()
    again.unlock()
    assert not state.task_path(TaskId(0, 0)).exists()
    assert state.task_path(TaskId(0, 1)).exists()


def test_state_that_is_used_is_not_old(tmp_path):
    """The age of a task's state counts from its last use, even if a process ended without releasing it."""
    state = directory(tmp_path)
    state.lock()
    old = time.time() - 100
    for task_id in (TaskId(0, 0), TaskId(0, 1)):
        state.own_task(task_id, "thread")
        state.task_path(task_id).joinpath("file").touch()
        os.utime(state.task_path(task_id), (old, old))
    state.disown_task(TaskId(0, 1), "thread")
    os.utime(state.task_path(TaskId(0, 1)), (old, old))
    state.touch_owned()
    state.unlock()  # as when the process ends
    again = directory(tmp_path, **{"state.cleanup.dir.max.age.ms": 50_000})
    again.lock()
    assert again.tasks_on_disk() == [TaskId(0, 0)]
    again.unlock()


def test_stateless_instances_share_a_machine(tmp_path):
    """Without persistent stores nothing is created or locked."""
    config = StreamsConfig.of({"application.id": "app", "state.dir": tmp_path / "state"})
    first, second = StateDirectory(config, persistent=False), StateDirectory(config, persistent=False)
    first.lock()
    second.lock()
    assert first.process_id != second.process_id
    assert first.own_task(TASK, "thread") is not None
    assert not (tmp_path / "state").exists()


def test_state_that_cannot_be_deleted_is_not_called_deleted(tmp_path, monkeypatch, caplog):
    """If deleting unused state fails, the log says so and what to do, and the clean-up continues; the next one tries again."""
    state = directory(tmp_path, **{"state.cleanup.delay.ms": 0})
    state.lock()
    try:
        for number in range(2):
            (state.path / f"0_{number}").mkdir()
        delete = shutil.rmtree

        def refuse_one(path):
            if path.stem == "0_0":
                raise PermissionError(errno.EACCES, "Permission denied")
            delete(path)

        monkeypatch.setattr("millrace.instance.state_directory.shutil.rmtree", refuse_one)
        assert state.clean_idle(time.time() + 60) == [TaskId(0, 1)]
        monkeypatch.undo()
        assert state.clean_idle(time.time() + 60) == [TaskId(0, 0)]
        assert [path.name for path in state.path.iterdir() if path.stem == "0_0"] == []
    finally:
        state.unlock()
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "Cannot delete the unused state in" in warning
    assert "0_0: Permission denied. To fix it: give the user" in warning
