"""Notices changes of a program's files by looking at their modification times: simple, and the same on every file system."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

_SKIPPED: Final = frozenset({"__pycache__", "node_modules"})


class SourceWatch:
    """The Python files below some folders, and some other files, in their last seen version.

    Hidden folders and virtual environments are left out.
    """

    def __init__(self, folders: Collection[Path], files: Collection[Path] = ()) -> None:
        self._folders = {folder.resolve() for folder in folders}
        self._files = files
        self._seen = dict(self._look())

    def changes(self) -> list[Path]:
        """Return the files that were changed, added or deleted since the last call."""
        before, self._seen = self._seen, dict(self._look())
        return sorted(path for path in before.keys() | self._seen.keys() if before.get(path) != self._seen.get(path))

    def _look(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for path in (*self._files, *(path for folder in self._folders for path in _python_files(folder))):
            try:
                found = path.stat()
            except OSError:  # deleted in the meantime
                continue
            yield path, (found.st_mtime_ns, found.st_size)


def _python_files(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not Path(place, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(place, name) for name in files if name.endswith(".py"))
