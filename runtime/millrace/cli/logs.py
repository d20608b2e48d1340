"""Where log records go: standard error, one line each, with the time and the logger."""

from __future__ import annotations

import logging


def configure(*, verbose: bool, quiet: bool = True) -> None:
    """Set up logging of this process; may be called again.

    Args:
        verbose: Whether Millrace logs at DEBUG; other libraries stay at WARNING.
        quiet: Whether Millrace, too, logs warnings only, where the command itself says what it does.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=logging.WARNING)
    usual = logging.WARNING if quiet else logging.INFO
    logging.getLogger("millrace").setLevel(logging.DEBUG if verbose else usual)
