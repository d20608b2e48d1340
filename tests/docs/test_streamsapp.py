"""The manifest reference: up to date and complete."""

from __future__ import annotations

import re

import pytest
from tests.docs import streamsapp
from tests.manifest.test_every_field import fields_of

from millrace.manifest import KINDS


def test_page_is_up_to_date():
    """`docs/streamsapp.md` matches the models; run `python -m tests.docs.streamsapp` after a change."""
    assert streamsapp.PAGE.read_text() == streamsapp.render()


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_on_the_page(kind):
    """Each field of the spec has a row with a meaning, under the heading of its mapping."""
    rows = set()
    heading = ""
    for line in streamsapp.render().splitlines():
        if line.startswith("### "):
            heading = line.removeprefix("### ")
        elif row := re.match(r"\| `(\w+)` \| .+ \|.*\| .+ \|$", line):
            rows.add(f"{heading}.{row[1]}")
    title = "" if kind == "StreamsApp" else f"{kind} "
    wanted = {title + path.replace("/0", "[]").replace("/", ".") for path in fields_of(kind) - {"spec"}}
    assert wanted <= rows
