"""Has Spark's processes use the PySpark that is installed.

Spark puts its own in front, which is the same one in a zip file. That has no place for compiled modules, so every process would
compile what it imports, which takes more than a second.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["prefer_installed_pyspark"]


def prefer_installed_pyspark() -> None:
    """Leave Spark's zip files out of the path if the PySpark that is installed is that of the Spark that runs."""
    others = [
        entry
        for entry in sys.path
        if not (entry.endswith(".zip") and Path(entry).name.startswith(("pyspark", "py4j-")))
    ]
    pyspark, py4j = (PathFinder.find_spec(name, others) for name in ("pyspark", "py4j"))
    home = os.environ.get("SPARK_HOME")
    if home and pyspark and pyspark.origin and py4j and Path(pyspark.origin).parent.resolve() == Path(home).resolve():
        sys.path[:] = others
