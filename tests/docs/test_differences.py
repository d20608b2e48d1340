"""The page of differences: its example runs, and the names it mentions exist."""

from __future__ import annotations

import doctest
import re

from tests.docs.configuration import fields
from tests.docs.inventory import ROOT

import millrace
from millrace import errors

PAGE = ROOT / "docs" / "differences.md"


def test_examples_run():
    """The Python on the page works as shown."""
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 5
    assert failed == 0


def test_names_of_methods_and_errors_exist():
    """Every call in the right column of the table exists."""
    table = re.findall(r"^\|.*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    called = set(re.findall(r"\b([a-z_]+)\(", " ".join(table))) - {"lambda"}
    public = {name for kind in vars(millrace.dsl).values() if isinstance(kind, type) for name in dir(kind)}
    public |= set(dir(millrace)) | set(dir(millrace.Topology)) | set(dir(millrace.KafkaStreams))
    assert called <= public
    assert {name for row in table for name in re.findall(r"\b(\w+Error)\b", row)} <= set(dir(errors))


def test_settings_exist():
    """Settings that the page describes as Millrace's own, or as different, exist."""
    text = PAGE.read_text()
    own = {"uncommitted.max.bytes", "rocksdb.memory.max.bytes"}
    assert own | {"num.standby.replicas", "group.protocol", "group.instance.id"} <= set(fields())
    assert all(key in text for key in own)
