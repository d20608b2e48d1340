"""How often Python looks for garbage: rarely while records are processed, unless the program has set that."""

import gc

import pytest

from millrace.garbage import MANY_RECORDS, rarely_collected


@pytest.fixture
def thresholds():
    """The garbage collector's thresholds, put back afterwards."""
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


@pytest.mark.parametrize("default", [700, 2000])
def test_the_default_is_raised_while_records_are_processed(thresholds, default):
    """The older generations keep theirs, unless others are given."""
    gc.set_threshold(default, *thresholds[1:])
    with rarely_collected():
        assert gc.get_threshold() == (20_000, *thresholds[1:])
    with rarely_collected(*MANY_RECORDS):
        assert gc.get_threshold() == MANY_RECORDS
    assert gc.get_threshold() == (default, *thresholds[1:])


@pytest.mark.parametrize("chosen", [0, 500, 50_000])
def test_what_the_program_chose_for_the_collector_stays(thresholds, chosen):
    """A program that has set another threshold, or none at all, keeps it."""
    gc.set_threshold(chosen, *thresholds[1:])
    with rarely_collected(), rarely_collected(*MANY_RECORDS):
        assert gc.get_threshold() == (chosen, *thresholds[1:])
