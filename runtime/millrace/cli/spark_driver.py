"""`python -m millrace.cli.spark_driver`: the command `millrace backfill`, as a Spark driver runs it."""

from __future__ import annotations

import sys

from millrace.backfill.installed_pyspark import prefer_installed_pyspark

if __name__ == "__main__":
    prefer_installed_pyspark()
    from millrace.cli.app import app

    app(["backfill", *sys.argv[1:]])
