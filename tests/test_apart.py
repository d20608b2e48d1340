"""A function that runs in a process of its own can fail or hang without harm, and the test that runs it says where."""

import ctypes

import pytest
from tests.apart import run_apart


def fail():
    """Fail."""
    raise ValueError("because of this")


def hang():
    """Wait in C for good, and keep Python's lock."""
    ctypes.PyDLL(None).pause()


def test_failure_is_told():
    """The test fails with the exception and its traceback."""
    with pytest.raises(AssertionError, match=r"(?s)exit code 1: .*in fail.*ValueError: because of this"):
        run_apart(fail)


def test_hang_in_c_ends_with_the_stacks():
    """The process ends at its limit, although nothing can run in Python, and the test says where it hung."""
    with pytest.raises(AssertionError, match=r"(?s)exit code 1: Timeout .*in hang"):
        run_apart(hang, limit_s=1.0)
