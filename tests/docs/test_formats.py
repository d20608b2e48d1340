"""The page of formats: every section that the code cites exists, and the examples match what the code writes."""

from __future__ import annotations

import doctest
import re

from tests.docs.inventory import ROOT

PAGE = ROOT / "docs" / "formats.md"
CITED = re.compile(r"formats §(\d+(?:, §\d+)*)")


def test_every_section_that_is_cited_is_there():
    """Docstrings and comments say "formats §N"; N is a heading on the page."""
    sections = set(re.findall(r"^## (\d+)\. ", PAGE.read_text(), re.MULTILINE))
    missing = {}
    for folder in ("runtime", "operator", "tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            for cited in CITED.findall(path.read_text()):
                if wrong := set(re.findall(r"\d+", cited)) - sections:
                    missing[str(path)] = wrong
    assert not missing


def test_examples_match_the_code():
    """Every example on the page runs."""
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 20
    assert failed == 0
