"""The errors that a user gets when a store's directory cannot be used."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from tests import forked

from millrace.errors import ConfigError, LockError, ProcessorStateError, StateDirectoryError, TaskCorruptedError
from millrace.records import TopicPartition, ValueAndTimestamp
from millrace.serdes.primitives import StringSerde
from millrace.state import Stores
from millrace.state.rocksdb import explain

S = StringSerde()
CHANGELOG = TopicPartition("app-s-changelog", 0)


def plain(name="s"):
    """Return the builder of a plain store."""
    return Stores.key_value_store_builder(Stores.persistent_key_value_store(name), S, S)


def test_second_process_is_refused_with_the_directory(task):
    """Opening a store that is open in another process is a LockError that names the directory and the remedy."""
    task.open(plain("key-value"))
    code = (
        "import sys; sys.path[:0]=[sys.argv[2]]\n"
        "from crash_writer import open_store\n"
        "from pathlib import Path\n"
        "from millrace.errors import LockError\n"
        "try: open_store(Path(sys.argv[1]), 'key-value')\n"
        "except LockError as error: print(error)\n"
    )
    done = forked.run(
        [sys.executable, "-c", code, str(task.state_dir), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert str(task.state_dir / "rocksdb" / "key-value") in done.stdout, done.stderr
    assert "state.dir" in done.stdout


def test_second_store_in_the_process_is_refused(make_task):
    """Opening the same directory twice in one process is also a LockError."""
    make_task().open(plain())
    with pytest.raises(LockError, match="in use"):
        make_task().open(plain())


@pytest.mark.parametrize("name", ["anti-corruption-layer", "corruption"])
def test_the_name_of_a_directory_is_not_taken_for_damage(make_task, name):
    """RocksDB's messages contain paths: a store in use is a LockError even if its path speaks of corruption, and is not wiped."""
    make_task(name).open(plain())
    with pytest.raises(LockError, match="in use"):
        make_task(name).open(plain())


def test_interrupted_creation_starts_over(task):
    """After a process died while creating the database and left files behind, the store opens, empty."""
    directory = task.state_dir / "rocksdb" / "s"
    directory.mkdir(parents=True)
    (directory / "000004.log").touch()
    (directory / "MANIFEST-000001").write_bytes(b"half")
    store = task.open(plain())
    assert list(store.all()) == []
    assert store.committed_offset(CHANGELOG) is None


def test_damaged_database_is_restored(make_task):
    """If a file of the database is missing, the task's state is wiped and restored."""
    task = make_task()
    store = task.open(plain())
    store.put("a", "1")
    store.commit({CHANGELOG: 0})
    store.close()
    for file in (task.state_dir / "rocksdb" / "s").glob("*.sst"):
        file.unlink()
    with pytest.raises(TaskCorruptedError, match="damaged"):
        task.open(plain())


def test_database_without_its_manifest_is_restored(make_task):
    """If the file that lists the database's files is missing, the task's state is wiped and restored."""
    task = make_task()
    task.open(plain()).close()
    (task.state_dir / "rocksdb" / "s" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    with pytest.raises(TaskCorruptedError, match="damaged"):
        task.open(plain())


@pytest.mark.parametrize("read", [lambda store: store.get("a"), lambda store: list(store.all())], ids=["get", "all"])
def test_damage_found_when_reading_is_restored(make_task, read):
    """Damage to rows is not seen until they are read: then the task's state is wiped and restored too."""
    task = make_task()
    store = task.open(plain())
    store.put("a", "1" * 1000)
    store.commit({CHANGELOG: 0})
    store.close()
    store = task.open(plain())
    for file in (task.state_dir / "rocksdb" / "s").glob("*.sst"):
        with file.open("r+b") as table:
            table.seek(10)
            table.write(b"damage")
    with pytest.raises(TaskCorruptedError, match="damaged"):
        read(store)


@pytest.mark.parametrize(("status", "wiped"), [(0, False), (1, True), (2, False)])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_store_of_a_java_process_that_died_is_not_trusted_under_exactly_once(make_task, status, wiped, guarantee):
    """Java may have written uncommitted changes: under exactly-once, its status `open` means that it is wiped."""
    task = make_task(settings={"processing.guarantee": guarantee})
    store = task.open(plain())
    store.put("a", "1")
    store.commit({CHANGELOG: 0})
    store._bytes_store._write_status(status.to_bytes(8, "big"))
    store._bytes_store.flush()
    store._bytes_store._release()
    if wiped and guarantee == "exactly_once_v2":
        with pytest.raises(TaskCorruptedError, match="Java"):
            task.open(plain())
    else:
        assert task.open(plain()).get("a") == "1"


def test_path_that_cannot_be_made_is_explained(make_task, tmp_path):
    """If the directory cannot be created, the message names it."""
    (tmp_path / "0_0").write_text("a file where the directory should be")
    with pytest.raises(ProcessorStateError, match="0_0"):
        make_task().open(plain())


def test_read_only_directory_is_explained(tmp_path):
    """A directory without write permission is a StateDirectoryError that points at owner, mode and mount."""
    directory = tmp_path / "0_0"
    directory.mkdir()
    directory.chmod(0o555)
    for parent in directory.parents[:3]:
        parent.chmod(0o755)
    code = (
        "import os, sys; sys.path[:0]=[sys.argv[2]]\n"
        "from crash_writer import open_store\n"
        "from pathlib import Path\n"
        "from millrace.errors import StateDirectoryError\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try: open_store(Path(sys.argv[1]), 'key-value')\n"
        "except StateDirectoryError as error: print(error)\n"
    )
    done = forked.run(
        [sys.executable, "-c", code, str(directory), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "cannot be written: check owner, mode and mount" in done.stdout, done.stderr


def test_full_disk_is_explained_and_leaves_the_last_commit(make_task):
    """When the disk is full, commit says so; once there is space, the store reopens at an earlier commit, whole."""
    owner = make_task(settings={"rocksdb.config.setter": TinyBuffers()})
    store = owner.open(plain())
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    written: list[tuple[str, str]] = []
    try:
        with pytest.raises(StateDirectoryError, match=r"full: free or add space"):
            for offset in range(5_000):
                written.append((f"k{offset}", os.urandom(10_000).hex()))
                store.put(*written[-1])
                store.commit({CHANGELOG: offset})
        assert store.get(written[-1][0]) == written[-1][1]
        with pytest.raises(StateDirectoryError, match="full"):
            store.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    store = owner.open(plain())
    recorded = store.committed_offset(CHANGELOG)
    assert dict(store.all()) == dict(written[: 0 if recorded is None else recorded + 1])


def test_downgrade_is_refused(make_task):
    """A store with an older value format does not open a database with a newer one, and the message says what to do."""
    newer = make_task().open(
        Stores.timestamped_key_value_store_builder(Stores.persistent_timestamped_key_value_store("s"), S, S)
    )
    newer.put("a", ValueAndTimestamp("x", 1))
    newer.commit({CHANGELOG: 0})
    newer.close()
    with pytest.raises(ProcessorStateError, match="newer value format"):
        make_task().open(plain())


def test_missing_serde_names_the_store(task):
    """A store without a serde, and without a default one, is a ConfigError that names store and key."""
    with pytest.raises(ConfigError, match=r"'s'.*default\.key\.serde"):
        task.open(Stores.key_value_store_builder(Stores.persistent_key_value_store("s"), None, None))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("IO error: No space left on device: While appending to file: /x/1.sst", StateDirectoryError),
        ("IO error: While open a file for lock: /x/LOCK: Read-only file system", StateDirectoryError),
        ("IO error: While open a file for lock: /x/LOCK: Permission denied", StateDirectoryError),
        ("IO error: While lock file: /x/LOCK: Resource temporarily unavailable", LockError),
        ("Corruption: bad magic", ProcessorStateError),
    ],
)
def test_rocksdb_messages_are_recognised(text, kind):
    """Each error of RocksDB becomes the exception class that a runbook would mention, with the directory in its message."""
    error = explain(Exception(text), Path("/state/0_0/rocksdb/s"))
    assert type(error) is kind
    assert "/state/0_0/rocksdb/s" in str(error)


class TinyBuffers:
    """Makes RocksDB write files early."""

    def set_config(self, store_name, options, config):
        options.options.set_write_buffer_size(64 * 1024)

    def close(self, store_name, options): ...
