"""The replay itself must fail if an expectation is changed or missing."""

from __future__ import annotations

import base64
import itertools
import json
import shutil

import pytest
from tests.golden import cases, describe, replay
from tests.golden.cases import CASES, RECORDED_CASES
from tests.golden.describe import DESCRIPTIONS, RECORDED_DESCRIPTIONS


def _copied(tmp_path, *names):
    folder = tmp_path / "cases"
    for name in names:
        shutil.copytree(CASES / name, folder / name)
    return folder


def _change(path, change):
    """Change every line of a file, and drop it if the change returns False; something must have changed."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    before = json.dumps(rows)
    changed = [row for row in rows if change(row) is not False]
    assert json.dumps(changed) != before
    path.write_text("".join(json.dumps(row) + "\n" for row in changed))


def _run(folder, *arguments):
    """Return the exit code of the replay of a folder."""
    try:
        return replay.main([str(folder), *arguments])
    except SystemExit as end:
        return end.code


def test_no_recording_is_missing():
    """Every recorded case and description still exists, and the tests run it."""
    assert len(cases.names(CASES)) == RECORDED_CASES
    assert len(describe.names(DESCRIPTIONS)) == RECORDED_DESCRIPTIONS


@pytest.mark.parametrize("arguments", [(), ("--only", "cogroup")])
def test_empty_folder_fails(tmp_path, capsys, arguments):
    """A folder without cases, or without the requested case, is reported as an error."""
    assert _run(tmp_path, *arguments) == 2
    assert ": there is no" in capsys.readouterr().err


def test_unknown_name_fails(tmp_path, capsys):
    """A misspelt name is an error, even next to correct names."""
    assert _run(_copied(tmp_path, "reduce"), "--only", "reduce", "redcue") == 2
    assert "there is no redcue" in capsys.readouterr().err


def test_vanished_case_fails(tmp_path, capsys, monkeypatch):
    """The project's recordings are counted: one less is an error."""
    folder = _copied(tmp_path, "reduce", "wordcount")
    monkeypatch.setattr(replay, "CASES", folder)
    monkeypatch.setattr(replay, "RECORDED_CASES", 3)
    assert _run(folder) == 2
    assert "there should be 3 recordings, and there are 2" in capsys.readouterr().err


def test_folder_without_a_case_fails(tmp_path, capsys):
    """A folder without its description is a failure, and is not skipped."""
    folder = _copied(tmp_path, "reduce", "wordcount")
    (folder / "reduce" / "case.json").unlink()
    assert _run(folder) == 1
    assert "1 passed, 1 failed" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["input.jsonl", "expected.jsonl", "stores.jsonl"])
@pytest.mark.parametrize("name", ["reduce", "deser_fail"])
def test_missing_file_fails(tmp_path, name, file):
    """Each of a case's files must exist, even if it is empty."""
    folder = _copied(tmp_path, name)
    (folder / name / file).unlink()
    assert _run(folder) == 1


@pytest.mark.parametrize("name", ["count_nokeychange__cache_tiny", "ss_left__hdrfmt", "win_session__hdrfmt"])
def test_no_suffix_exempts_a_case(tmp_path, name):
    """A case that depends on the cache's accounting or on an optional format is compared too."""
    folder = _copied(tmp_path, name)
    assert _run(folder) == 0
    _change(folder / name / "expected.jsonl", lambda row: row.update(ts=row["ts"] + 1))
    assert _run(folder) == 1


def test_case_of_an_unknown_topology_fails(tmp_path):
    """A case cannot pass by not being run."""
    folder = _copied(tmp_path, "reduce")
    path = folder / "reduce" / "case.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "topology": "none_of_ours"}))
    assert _run(folder) == 1


def test_missing_metric_fails(tmp_path):
    """If the number of dropped records was not recorded, the case fails."""
    folder = _copied(tmp_path, "reduce")
    _change(folder / "reduce" / "stores.jsonl", lambda row: "metric" not in row)
    assert _run(folder) == 1


def test_lines_of_a_store_cannot_vanish(tmp_path):
    """A store without lines must be empty."""
    folder = _copied(tmp_path, "reduce")
    _change(folder / "reduce" / "stores.jsonl", lambda row: "store" not in row)
    assert _run(folder) == 1


def test_order_over_topics_is_compared(tmp_path):
    """Records of one operation come in the recorded order, even across topics."""
    name = "papi_interleaved__cache_deferred"
    folder = _copied(tmp_path, name)
    path = folder / name / "expected.jsonl"
    lines = path.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    at = next(n for n, (a, b) in enumerate(itertools.pairwise(rows)) if a["i"] == b["i"] and a["topic"] != b["topic"])
    lines[at : at + 2] = reversed(lines[at : at + 2])
    path.write_text("\n".join(lines) + "\n")
    assert _run(folder) == 1


STORE_CHANGES = {
    "value": lambda row: row.update(value=row["value"] + "x"),
    "timestamp": lambda row: row.update(ts=row["ts"] + 1),
    "no timestamp": lambda row: row.pop("ts"),
    "kind": lambda row: row.update(kind="window"),
    "headers": lambda row: row.update(
        headers="RecordHeaders(headers = [RecordHeader(key = h1, value = [1])], isReadOnly = false)"
    ),
}


@pytest.mark.parametrize("change", STORE_CHANGES)
@pytest.mark.parametrize("name", ["reduce", "count_headers_fmt"])
def test_every_part_of_a_store_is_compared(tmp_path, name, change):
    """A store's lines have kind, key, value, timestamp and headers, and all are compared."""
    folder = _copied(tmp_path, name)

    def changed(row):
        if "store" in row:
            STORE_CHANGES[change](row)

    _change(folder / name / "stores.jsonl", changed)
    assert _run(folder) == 1


def test_headers_of_sessions_are_compared(tmp_path):
    """The recorder writes them into the aggregate's text."""
    folder = _copied(tmp_path, "win_session__hdrfmt")

    def add_header(row):
        if "store" in row:
            row["value"] = row["value"].replace("[]", "[RecordHeader(key = h1, value = [1])]")

    _change(folder / "win_session__hdrfmt" / "stores.jsonl", add_header)
    assert _run(folder) == 1


def test_class_of_a_buffer_is_compared(tmp_path):
    """A suppressed table's buffer is of the recorded class."""
    folder = _copied(tmp_path, "suppress_time")

    def other_class(row):
        if row.get("kind") == "other":
            row["class"] = "RocksDBTimeOrderedKeyValueBuffer"

    _change(folder / "suppress_time" / "stores.jsonl", other_class)
    assert _run(folder) == 1


@pytest.mark.parametrize("name", ["suppress_time", "suppress_maxrecords"])
def test_content_of_a_buffer_is_compared(name, tmp_path, monkeypatch):
    """A buffer's final content must be what remains in the recorded changelog."""
    folder = _copied(tmp_path, name)
    monkeypatch.setattr(replay, "compare_sent", lambda *_, **__: [])
    assert _run(folder) == 0
    (store,) = (
        row["store"]
        for row in map(json.loads, (folder / name / "stores.jsonl").read_text().splitlines())
        if row.get("kind") == "other"
    )
    sent = (folder / name / "expected.jsonl").read_text().splitlines()
    logged = [row for row in map(json.loads, sent) if row["topic"] == f"app-{store}-changelog"]
    last = {row["k"]: row for row in logged}
    held = next(row for row in last.values() if row["v"] is not None)
    altered = base64.b64encode(base64.b64decode(held["v"])[:-1] + b"?").decode()
    _change(folder / name / "expected.jsonl", lambda row: row.update(v=altered) if row["n"] == held["n"] else None)
    assert _run(folder) == 1


def test_description_needs_both_files(tmp_path):
    """The text and the topics are both compared, so neither may be missing."""
    for suffix in ("txt", "topics.json"):
        folder = tmp_path / suffix
        folder.mkdir()
        for kept in ("txt", "topics.json"):
            shutil.copy(DESCRIPTIONS / f"cogroup.{kept}", folder)
        assert describe.main([str(folder)]) == 0
        (folder / f"cogroup.{suffix}").unlink()
        assert describe.main([str(folder)]) == 1


@pytest.mark.parametrize("arguments", [(), ("--only", "cogroup")])
def test_missing_description_fails(tmp_path, arguments):
    """An empty folder, or one without the requested description, is an error."""
    with pytest.raises(SystemExit) as end:
        describe.main([str(tmp_path), *arguments])
    assert end.value.code == 2
