"""Damages an instance's state directory while no process uses it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

DAMAGED = "damaged-by-the-soak"
"""A file with this name lies in a damaged database, until the task's state is wiped."""


def delete(application_directory: Path, chance: random.Random) -> str:
    """Delete an instance's whole state, or that of one task; return what."""
    tasks = sorted(application_directory.glob("*_*"))
    if not tasks or chance.random() < 0.3:
        shutil.rmtree(application_directory, ignore_errors=True)
        return "everything"
    task = chance.choice(tasks)
    shutil.rmtree(task)
    return task.name


def corrupt(application_directory: Path, chance: random.Random) -> str:
    """Damage a database: cut off its manifest, or overwrite part of a table or of the pointer to the manifest; return what."""
    databases = sorted(path.parent for path in application_directory.rglob("CURRENT"))
    if not databases:
        return "nothing"
    database = chance.choice(databases)
    tables = sorted(database.glob("*.sst"))
    kind = (
        chance.choice(("table", "table", "manifest", "pointer")) if tables else chance.choice(("manifest", "pointer"))
    )
    if kind == "table":
        path = chance.choice(tables)
        _overwrite(path, chance)
    elif kind == "manifest":
        path = max(database.glob("MANIFEST-*"))
        _cut(path, chance)
    else:
        path = database / "CURRENT"
        path.write_bytes(b"MANIFEST-999999\n")
    (database / DAMAGED).touch()
    return str(path.relative_to(application_directory))


def _overwrite(path: Path, chance: random.Random) -> None:
    size = path.stat().st_size
    at = chance.randrange(size)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(chance.randbytes(min(64, size - at)))


def _cut(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(chance.randrange(1, path.stat().st_size))
