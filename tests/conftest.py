"""Shared by all tests."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from tests import quarantine
from tests.budget.order import in_order, measured
from tests.budget.recording import Recording, TestCosts
from tests.running import RunningTests

from millrace.dev.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An example's duration depends on the machine, not on the product: a pause of a quarter of a second must not fail a test.
settings.register_profile(
    "millrace",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("millrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the costs of a run be recorded, and tests that fail by chance be run."""
    parser.addoption("--record", type=Path, metavar="FILE", help="write what the tests have cost to FILE")
    parser.addoption("--quarantined", action="store_true", help="run the tests of quarantine.txt, not all others")


def pytest_configure(config: pytest.Config) -> None:
    """Record costs, in the process that was started and in xdist's workers, and say at a sudden end what was running."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunningTests())
    path: Path | None = config.getoption("--record")
    if path is not None:
        config.pluginmanager.register(TestCosts())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Recording(config.rootpath / path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files in the order in which the workers end together, without the tests that fail by chance."""
    quarantine.keep_apart(config, items)
    path = {item: item.nodeid.partition("::")[0] for item in items}
    order = {file: number for number, file in enumerate(in_order(set(path.values()), measured()))}
    items.sort(key=lambda item: order[path[item]])


@pytest.fixture(scope="session")
def kafka_options() -> Mapping[str, Any]:
    """Options of the shared broker.

    Nobody stops it, so it may pause for long without being considered dead: that would cost markers. Streams groups rebalance as
    quickly as classic ones do here, by short heartbeat intervals and without delays. It has a rack, for rack-aware assignment.
    """
    return {
        "config": {
            "broker.session.timeout.ms": "60000",
            "broker.rack": "rack-1",
            # A transaction that takes too long is ended when its time is over, not up to ten seconds later.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            "group.streams.min.heartbeat.interval.ms": "200",
            "group.streams.heartbeat.interval.ms": "200",
            "group.streams.min.session.timeout.ms": "2000",
            "group.streams.min.assignment.interval.ms": "0",
            "group.streams.assignment.interval.ms": "0",
            "group.streams.initial.rebalance.delay.ms": "0",
        }
    }


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Undo what a command run in the test's own process has configured: other tests look at the log too."""
    loggers = [logging.getLogger(), logging.getLogger("millrace")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with two cores, set up for many small jobs; a process can have but one, so all its tests share it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    java = find_java()
    os.environ.update(
        JAVA_HOME=str(java.executable.resolve().parent.parent),
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
        SPARK_LOCAL_DIRS=str(tmp_path_factory.mktemp("spark")),
    )
    spark_settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in spark_settings.items():
        builder = builder.config(name, value)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()  # which ends Java
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None
    os.environ.clear()
    os.environ.update(before)
