"""The page of settings: up to date, complete, and honest about settings without effect."""

from __future__ import annotations

from tests.docs import configuration


def test_page_is_up_to_date():
    """`docs/configuration.md` matches the settings; run `python -m tests.docs.configuration` after a change."""
    assert configuration.PAGE.read_text() == configuration.render(configuration.load())


def test_every_setting_is_explained_and_ignored_ones_are_marked():
    """No setting is missing or invented, and the code reads none of those marked as ignored."""
    problems = list(configuration.problems(configuration.load()))
    assert not problems, "\n".join(problems)
