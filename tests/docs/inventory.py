"""Generates `docs/inventory.md` from `docs/inventory.yaml`, and checks that every proof it names exists.

python -m tests.docs.inventory          writes the page
python -m tests.docs.inventory --check  says whether it is up to date, and exits with 1 if not
"""
# ruff: noqa: T201 (a command-line tool)

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from yaml import safe_load

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "docs" / "inventory.yaml"
PAGE = ROOT / "docs" / "inventory.md"
CASES = ROOT / "tests" / "golden" / "data" / "cases"
DESCRIPTIONS = ROOT / "tests" / "golden" / "data" / "describe"
MARKS = ("done", "partly", "no")
ROWS, COMPARED = "rows", "compared with Java"
COMPLETE_SECTIONS = "ABCDEFGHIJKL"
"""Sections in which every row needs a proof, or a reason why it has none."""

_HEAD = """# Inventory

The features of Kafka Streams 4.3.1, row by row, and what proves that Millrace has them. This page is generated from
[inventory.yaml](inventory.yaml) by `python -m tests.docs.inventory`; a test keeps it up to date and checks that every proof
exists.

* **done**: supported, and proven by the tests listed. **partly**, **no**: the note says what is missing and why.
* *recorded*: inputs that were run through Java and are replayed here; every record, store and count must be the same
  (`tests/golden/test_replay.py`). *described*: the same for the topology's text and topics (`tests/golden/test_describe.py`).
* *compared with Java*: rows with at least one recorded or described case, or a test that reads what Java wrote or runs alongside
  Java.
"""


class Row(BaseModel):
    """One feature."""

    model_config = ConfigDict(extra="forbid")

    id: str
    area: str
    feature: str
    java: str
    mark: str = Field(pattern="^(done|partly|no)$")
    note: str = ""
    tests: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    descriptions: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Whether anything proves it."""
        return bool(self.tests or self.cases or self.descriptions)

    @property
    def is_compared_with_java(self) -> bool:
        """Whether one of its proofs compares with what Java wrote, or runs alongside Java."""
        of_java = ("java", "kafka_streams", "tests/golden/", "tests/interop/")
        tests = [
            test for test in self.tests if not test.startswith("tests/kafka/test_clients.py")
        ]  # librdkafka's settings
        return bool(self.cases or self.descriptions) or any(word in test for test in tests for word in of_java)


class Section(BaseModel):
    """A group of features."""

    model_config = ConfigDict(extra="forbid")

    section: str
    title: str
    rows: tuple[Row, ...]


def load() -> list[Section]:
    """Read the inventory."""
    return [Section.model_validate(item) for item in safe_load(SOURCE.read_text())]


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Return the names of the functions in a file; none if the file does not exist."""
    if not path.is_file():
        return frozenset()
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


def problems(sections: list[Section]) -> Iterator[str]:
    """Yield what is wrong with the inventory."""
    ids = Counter(row.id for section in sections for row in section.rows)
    yield from (f"{row_id}: {count} rows have this id" for row_id, count in ids.items() if count > 1)
    for section in sections:
        for row in section.rows:
            if not row.id.startswith(section.section):
                yield f"{row.id}: is in section {section.section}"
            if row.mark != "done" and not row.note:
                yield f"{row.id}: is marked {row.mark} without a reason"
            if row.mark == "done" and section.section in COMPLETE_SECTIONS and not row.is_proven:
                yield f"{row.id}: is marked done, but nothing proves it"
            yield from (f"{row.id}: {problem}" for problem in _missing(row))


def _missing(row: Row) -> Iterator[str]:
    for test in row.tests:
        path, _, name = test.partition("::")
        function, _, parameter = name.rstrip("]").partition("[")
        if function not in functions_of(ROOT / path) or parameter not in (ROOT / path).read_text():
            yield f"there is no test {test}"
    yield from (f"there is no case {name}" for name in row.cases if not (CASES / name / "case.json").is_file())
    for name in row.descriptions:
        if not (DESCRIPTIONS / f"{name}.txt").is_file():
            yield f"there is no description {name}"


def render(sections: list[Section]) -> str:
    """Return the page."""
    parts = [_HEAD, _summary(sections)]
    for section in sections:
        parts.append(f"## {section.section}. {section.title}\n")
        parts.append("| id | feature | in Java | mark | proven by | note |\n|---|---|---|---|---|---|")
        parts.append("".join(_line(row) for row in section.rows))
    return "\n".join(parts)


def _summary(sections: list[Section]) -> str:
    lines = [
        "| section | " + " | ".join(MARKS) + " | rows | compared with Java |",
        "|---|" + "---:|" * (len(MARKS) + 2),
    ]
    total: Counter[str] = Counter()
    for section in sections:
        counts = Counter(row.mark for row in section.rows)
        counts[ROWS] = len(section.rows)
        counts[COMPARED] = sum(row.is_compared_with_java for row in section.rows)
        total += counts
        anchor = f"{section.section}-{section.title}".lower().replace(" ", "-").replace(",", "").replace("_", "")
        lines.append(f"| [{section.section}. {section.title}](#{anchor}) | {_counts(counts)} |")
    lines.append(f"| **all** | {_counts(total)} |")
    return "\n".join(lines) + "\n"


def _counts(counts: Counter[str]) -> str:
    return " | ".join(str(counts[mark]) for mark in (*MARKS, ROWS, COMPARED))


def _line(row: Row) -> str:
    cells = (row.id, f"*{row.area}*: {row.feature}", row.java, row.mark, _proofs(row), row.note.strip())
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def _proofs(row: Row) -> str:
    proofs = []
    if row.cases:
        proofs.append("recorded: " + ", ".join(f"`{name}`" for name in row.cases))
    if row.descriptions:
        proofs.append("described: " + ", ".join(f"`{name}`" for name in row.descriptions))
    for test in row.tests:
        path, _, function = test.partition("::")
        proofs.append(f"[{function}](../{path})")
    return "<br>".join(proofs)


def main(arguments: list[str]) -> int:
    """Write the page, or check it; return the exit code."""
    sections = load()
    wrong = list(problems(sections))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    page = render(sections)
    if "--check" in arguments:
        current = PAGE.is_file() and PAGE.read_text() == page
        print("up to date" if current else "docs/inventory.md is out of date: run python -m tests.docs.inventory")
        return 0 if current and not wrong else 1
    PAGE.write_text(page)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
