"""The page of settings: current, complete, and honest about what has no effect."""

from __future__ import annotations

from tests.docs import configuration


def test_page_is_current():
    """`docs/configuration.md` is what the settings give; run `python -m tests.docs.configuration` after a change."""
    assert configuration.PAGE.read_text() == configuration.render(configuration.load())


def test_every_setting_is_explained_and_what_is_ignored_is_said_to_be():
    """No setting is missing or invented, and none that is called ignored is read by the code."""
    problems = list(configuration.problems(configuration.load()))
    assert not problems, "\n".join(problems)
