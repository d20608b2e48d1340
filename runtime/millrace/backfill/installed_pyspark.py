"""Has Spark's processes use the PySpark that is installed.

Spark puts the same one in front of it, in a zip file. That has no place for compiled modules, so every process would spend
more than a second on compiling what it imports.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["prefer_installed_pyspark"]


def prefer_installed_pyspark() -> None:
    """Leave Spark's zip files out of the path if the PySpark that is installed is that of the Spark that runs."""
    if "SPARK_HOME" not in os.environ:
        return
    home = Path(os.environ["SPARK_HOME"])
    zipped = {str(file) for name in ("pyspark.zip", "py4j-*-src.zip") for file in (home / "python" / "lib").glob(name)}
    others = [entry for entry in sys.path if entry not in zipped]
    pyspark, py4j = (PathFinder.find_spec(name, others) for name in ("pyspark", "py4j"))
    if pyspark and pyspark.origin and py4j and Path(pyspark.origin).parent.resolve() == home.resolve():
        sys.path[:] = others
