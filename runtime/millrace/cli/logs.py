"""Where log records go: standard error, one line each, with the time and the logger."""

from __future__ import annotations

import logging


def configure(*, verbose: bool) -> None:
    """Set up logging of this process.

    Args:
        verbose: Whether Millrace logs at DEBUG; other libraries stay at WARNING.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("millrace").setLevel(logging.DEBUG if verbose else logging.INFO)
