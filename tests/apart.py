"""Tests that run in a process of their own, because a fault would freeze this one for good, and all tests that wait for it."""

from __future__ import annotations

import faulthandler
import multiprocessing
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.waiting import PATIENCE_S

_START_AND_END_S = 40.0
"""How long a process may take besides: until it begins, and to write its stacks and end."""


def run_apart(function: Callable[..., None], *arguments: object, limit_s: float = 2 * PATIENCE_S) -> None:
    """Run a function in a process of its own.

    One that holds Python's lock while it waits in C cannot be interrupted from Python: then a thread of faulthandler, which
    needs no lock, ends the process.

    Args:
        function: One of a module's own.
        arguments: Can be pickled.
        limit_s: How long it may take: less than pytest allows, so that the stacks are seen.

    Raises:
        AssertionError: It failed, or did not end in time; the message has the exception, or the stacks of all threads.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        process = multiprocessing.get_context("spawn").Process(target=_run, args=(function, arguments, limit_s, log))
        process.start()
        try:
            process.join(limit_s + _START_AND_END_S)
        finally:
            process.kill()
            process.join()
        assert process.exitcode == 0, f"exit code {process.exitcode}: {log.read_text() if log.exists() else 'no log'}"


def _run(function: Callable[..., None], arguments: tuple[object, ...], limit_s: float, log: Path) -> None:
    with log.open("w") as output:
        faulthandler.enable(output)
        faulthandler.dump_traceback_later(limit_s, exit=True, file=output)
        try:
            function(*arguments)
        except BaseException:
            traceback.print_exc(file=output)
            sys.exit(1)
        finally:
            faulthandler.cancel_dump_traceback_later()
            faulthandler.disable()
