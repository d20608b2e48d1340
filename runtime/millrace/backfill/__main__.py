"""`python -m millrace.backfill`: the command `millrace backfill`, as a Spark driver runs it."""

from __future__ import annotations

import sys

from millrace.cli.app import app

if __name__ == "__main__":
    app(["backfill", *sys.argv[1:]])
