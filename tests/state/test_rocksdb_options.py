"""RocksDB's memory budget: a fraction of the container's limit, wherever that is defined."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pytest
from tests import forked

from millrace.config import StreamsConfig
from millrace.errors import ConfigError
from millrace.state.rocksdb_options import memory_limit, rocksdb_budget

MIB = 1 << 20


def config(**settings):
    """Return the configuration of an application; underscores stand for dots."""
    return StreamsConfig.of(
        {"application.id": "app"} | {key.replace("_", "."): value for key, value in settings.items()}
    )


def tree(root, cgroup, **limits):
    """Create a file system of control groups: the content of /proc/self/cgroup, and limit files by path."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(cgroup)
    for path, limit in limits.items():
        file = root / "sys" / "fs" / "cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return root


def test_version_2_container_sees_its_group_as_root(tmp_path):
    """In a container the limit is in memory.max at the root of the mounted hierarchy."""
    root = tree(tmp_path, "0::/\n", **{"memory.max": 512 * MIB})
    assert memory_limit(root) == 512 * MIB
    assert rocksdb_budget(config(rocksdb_memory_fraction="0.25"), root) == 128 * MIB


def test_version_1_container_whose_path_is_that_of_the_host(tmp_path):
    """Without its own namespace the path does not exist, and the mounted root is the container's group."""
    lines = "12:pids:/kubepods/pod1\n4:cpu,memory:/kubepods/pod1\n0::/\n"
    assert memory_limit(tree(tmp_path, lines, **{"memory/memory.limit_in_bytes": 256 * MIB})) == 256 * MIB


@pytest.mark.parametrize("version", [1, 2])
def test_smallest_limit_of_all_groups_above_counts(tmp_path, version):
    """A group is limited by its parents too."""
    if version == 1:
        folder, name, cgroup = "memory/", "memory.limit_in_bytes", "4:memory:/slice/app\n"
    else:
        folder, name, cgroup = "", "memory.max", "0::/slice/app\n"
    limits = {f"{folder}slice/app/{name}": 700 * MIB, f"{folder}slice/{name}": 300 * MIB, f"{folder}{name}": 900 * MIB}
    assert memory_limit(tree(tmp_path, cgroup, **limits)) == 300 * MIB


@pytest.mark.parametrize(
    ("cgroup", "limits"),
    [
        ("0::/\n", {"memory.max": "max"}),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": 9_223_372_036_854_771_712}),
        ("0::/\n", {}),
        ("", {}),
    ],
)
def test_without_a_limit_the_default_stays(tmp_path, cgroup, limits, caplog):
    """Both versions' forms of no limit are recognised, and a warning says that a fraction of it has no effect."""
    root = tree(tmp_path, cgroup, **limits)
    assert memory_limit(root) is None
    assert rocksdb_budget(config(rocksdb_memory_fraction=0.5), root) == 256 * MIB
    assert "rocksdb.memory.fraction=0.5 has no effect" in caplog.text


def test_number_of_bytes_goes_before_the_fraction(tmp_path):
    """An explicit number of bytes takes precedence."""
    root = tree(tmp_path, "0::/\n", **{"memory.max": 512 * MIB})
    both = config(rocksdb_memory_fraction=0.5, rocksdb_memory_max_bytes=7 * MIB)
    assert rocksdb_budget(both, root) == 7 * MIB
    assert rocksdb_budget(config(), root) == 256 * MIB


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, "half"])
def test_fraction_is_between_0_and_1(fraction):
    """Anything else is refused with the setting's name."""
    with pytest.raises(ConfigError, match=r"rocksdb\.memory\.fraction"):
        config(rocksdb_memory_fraction=fraction)


def real_group():
    """Return the folder and limit file of a new control group below this process's own, or None if none can be created."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            folder, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        elif not controllers:
            folder, name = Path("/sys/fs/cgroup"), "memory.max"
        else:
            continue
        group = folder / path.lstrip("/") / f"millrace-test-{secrets.token_hex(4)}"
        try:
            group.mkdir()
        except OSError:
            continue
        if os.access(group / name, os.W_OK):
            return group, name
        group.rmdir()
    return None


def test_limit_of_a_real_group_is_seen_by_a_process_in_it(tmp_path):
    """A process in a group of 200 MiB finds that limit; if groups cannot be created, in files like theirs."""
    made = real_group()
    code = "from millrace.state.rocksdb_options import memory_limit; from pathlib import Path; import sys; "
    if made is None:
        root = tree(tmp_path, "0::/pod\n", **{"pod/memory.max": 200 * MIB, "memory.max": "max"})
    else:
        group, name = made
        root = Path("/")
        (group / name).write_text(str(200 * MIB))
        code += f"Path({str(group / 'cgroup.procs')!r}).write_text('0'); "
    code += "print(memory_limit(Path(sys.argv[1])))"
    try:
        ran = forked.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, timeout=60)
        assert ran.stdout.strip() == str(200 * MIB), ran.stderr
    finally:
        if made is not None:
            made[0].rmdir()
