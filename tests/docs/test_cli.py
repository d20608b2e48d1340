"""The page of the command line: up to date, and with every command and option."""

from __future__ import annotations

import re

import pytest
from tests.docs import cli


def test_page_is_up_to_date():
    """`docs/cli.md` matches the commands' help; run `python -m tests.docs.cli` after a change."""
    assert cli.PAGE.read_text() == cli.render()


@pytest.mark.parametrize(
    ("name", "command"), list(cli.commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_and_option_is_on_the_page(name, command):
    """A command has a section, which names all its options."""
    (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", cli.PAGE.read_text(), re.MULTILINE | re.DOTALL)
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    options = [option for parameter in shown for option in parameter.opts if option.startswith("-")]
    assert [option for option in options if option not in {"--help", "-h"} and option not in section] == []
