"""Modules do not import each other in circles, and `make layers` refuses those that would."""

from __future__ import annotations

import tomllib
from pathlib import Path

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from tests.house import PACKAGES, circles, upward

configuration.configure()

ROOT = Path(__file__).parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
NO_CIRCLES = next(contract for contract in CONTRACTS if contract["name"] == "No circles")


def test_no_modules_import_each_other_at_run_time():
    """Without what is imported for type checkers only, there is no circle of modules, and no exception to that."""
    graph = grimp.build_graph(*PACKAGES.values(), exclude_type_checking_imports=True, cache_dir=None)
    assert circles(graph) == []


def test_only_types_of_the_dsl_are_in_a_circle():
    """What type checkers import makes one circle, which the contract's exceptions explain: without them there is none."""
    graph = grimp.build_graph(*PACKAGES.values(), cache_dir=None)
    (circle,) = circles(graph)
    assert all(module.startswith("millrace.dsl.") for module in circle)
    for line in NO_CIRCLES["ignore_imports"]:
        importer, imported = line.split(" -> ")
        graph.remove_import(importer=importer, imported=imported)
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("planted", "text"),
    [
        ("low/base.py", "from planted.low import above\n"),
        ("low/base.py", "def late():\n    from planted.low.above import Above\n"),
        (
            "low/base.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted.low.above import Above\n",
        ),
        ("low/other.py", "import planted.high.user\n"),
    ],
    ids=["modules", "in a function", "for type checkers", "packages"],
)
def test_a_planted_circle_is_refused(tmp_path, monkeypatch, planted, text):
    """The contract holds for modules and packages that use each other in one direction, and for no import back."""
    package = tmp_path / "planted"
    for path, source in {
        "__init__.py": "",
        "low/__init__.py": "",
        "low/base.py": "",
        "low/other.py": "",
        "low/above.py": "from planted.low.base import Base\n",
        "high/__init__.py": "",
        "high/user.py": "from planted.low.above import Above\n",
    }.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    contract = AcyclicSiblingsContract("", {}, {**NO_CIRCLES, "ancestors": ["planted"], "ignore_imports": []})
    before = grimp.build_graph("planted", cache_dir=None)
    assert contract.check(before, verbose=False).kept
    assert upward(before, "planted") == []
    (package / planted).write_text(text)
    after = grimp.build_graph("planted", cache_dir=None)
    assert not contract.check(after, verbose=False).kept
    assert len(upward(after, "planted")) == 1
