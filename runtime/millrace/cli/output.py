"""Standard output is for a command's result alone, for programs to read; what user code prints goes to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

__all__ = ["prints_on_stderr"]


@contextlib.contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Have everything that is written to standard output in this block, by C code and child processes too, go to the other."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)
