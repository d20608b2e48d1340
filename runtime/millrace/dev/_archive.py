"""The JVM's archive of loaded classes, which cuts the broker's start from four seconds to one.

A start without an archive records one, and the JVM writes it when it ends cleanly; from then on every start on this machine
with the same Java and the same jars uses it. The JVM itself checks that an archive fits and ignores one that does not. Only
a start whose end we will see records, for an archive is put in place once the JVM has ended.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from millrace.dev.jars import cache_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from millrace.dev.java import Java


class ClassArchive:
    """The archive for one Java and one class path."""

    def __init__(self, java: Java, jars: Sequence[Path], *, may_record: bool) -> None:
        executable = java.executable.resolve()
        files = [executable, *jars]
        identity = repr([(str(file), file.stat().st_mtime_ns) for file in files])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._path = cache_directory() / "cds" / f"kafka-java{java.version}-{digest}.jsa"
        self._may_record = may_record
        self._recording: Path | None = None

    @property
    def recording(self) -> bool:
        """Whether a JVM started with `options` is to write the archive, which takes some seconds of its end."""
        return self._recording is not None

    def options(self) -> tuple[str, ...]:
        """Return the JVM options that use the archive or, for the first JVM while there is none, record it."""
        if self._path.exists():
            return (f"-XX:SharedArchiveFile={self._path}",)
        if self._recording or not self._may_record:
            return ()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._recording = self._path.with_suffix(f".{os.getpid()}.part")
        return (f"-XX:ArchiveClassesAtExit={self._recording}",)

    def close(self, *, complete: bool) -> None:
        """End the recording: put it in place if the JVM ended cleanly, else discard it."""
        if self._recording and complete and self._recording.exists():
            self._recording.replace(self._path)
        elif self._recording:
            self._recording.unlink(missing_ok=True)
        self._recording = None
