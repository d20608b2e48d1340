"""The page about the architecture names modules that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.docs.inventory import ROOT

SECTION = "### Where Java's classes are"
RUNTIME = ROOT / "runtime" / "millrace"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition(SECTION)[2].partition("\n#")[0].splitlines()
    if line.startswith("| ") and "`" in line
]


def defined_in(modules: list[Path]) -> set[str]:
    """Return the names that modules define: functions, classes, and methods as `Class.method`."""
    names = set()
    for path in modules:
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Assign):
                names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
            elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
                names.add(statement.name)
                inner = statement.body if isinstance(statement, ast.ClassDef) else ()
                names |= {f"{statement.name}.{method.name}" for method in inner if isinstance(method, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_where_a_class_of_java_is(row):
    """The modules and folders of a row exist, and the modules define its names."""
    _java, modules, names = row
    paths = [RUNTIME / path for path in re.findall(r"`([\w/]+/[\w/]+(?:\.py)?)`", modules + names)]
    assert paths
    assert not [path for path in paths if not path.exists()]
    cited = {name for name in re.findall(r"`([\w.]+)`", names) if not name.endswith(".py")}
    assert cited <= defined_in([path for path in paths if path.is_file()])


def test_the_table_is_found():
    """The table is not empty: its heading and its form are what the test above looks for."""
    assert len(ROWS) > 40
