"""One Spark session for all tests of backfills."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from millrace.dev.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with two cores, set up for many small jobs."""
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    java = find_java()
    os.environ.update(
        JAVA_HOME=str(java.executable.resolve().parent.parent),
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
        SPARK_LOCAL_DIRS=str(tmp_path_factory.mktemp("spark")),
    )
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
    os.environ.clear()
    os.environ.update(before)
