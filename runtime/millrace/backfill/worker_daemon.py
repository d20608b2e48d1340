"""`python -m millrace.backfill.worker_daemon`: `pyspark.daemon`, which starts Python workers, with the installed PySpark."""

from __future__ import annotations

from millrace.backfill.installed_pyspark import prefer_installed_pyspark

if __name__ == "__main__":
    prefer_installed_pyspark()
    from pyspark.daemon import manager

    manager()
