"""Which changes of files are noticed."""

from __future__ import annotations

import os

from millrace.dev.source_watch import SourceWatch


def test_changes_of_python_files_and_named_files(tmp_path):
    """Changed, added and deleted files are told once; others, hidden folders and virtual environments do not count."""
    program, manifest = tmp_path / "shop.py", tmp_path / "streamsapp.yaml"
    for path in (program, manifest, tmp_path / "notes.txt"):
        path.write_text("1")
    for folder in (".hidden", "env", "__pycache__", "package"):
        (tmp_path / folder).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    watch = SourceWatch([tmp_path, tmp_path], [manifest])
    assert watch.changes() == []
    for path in (
        tmp_path / "notes.txt",
        tmp_path / ".hidden/a.py",
        tmp_path / "env/a.py",
        tmp_path / "__pycache__/a.py",
    ):
        path.write_text("22")
    assert watch.changes() == []
    (tmp_path / "package" / "new.py").write_text("")
    manifest.write_text("22")
    assert watch.changes() == [tmp_path / "package" / "new.py", manifest]
    os.utime(program, ns=(1, 1))
    assert watch.changes() == [program]
    program.unlink()
    assert watch.changes() == [program]
    assert watch.changes() == []
