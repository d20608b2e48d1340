"""Shared by all tests."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from tests import brokers, quarantine
from tests.budget.order import in_order, measured
from tests.budget.recording import Recording, SharedFixtures, TestCosts
from tests.running import RunningTests
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from millrace.dev.java import find_java
from millrace.dev.kafka import EmbeddedKafka

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
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as a script's background jobs have it, with all that they start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunningTests(config))
    path: Path | None = config.getoption("--record")
    if path is not None:
        config.pluginmanager.register(TestCosts())
        config.pluginmanager.register(SharedFixtures())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Recording(config.rootpath / path))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run files in the order in which the workers end together, without the tests that fail by chance."""
    quarantine.keep_apart(config, items)
    scope = {item: _scope(item.nodeid) for item in items}
    order = {name: number for number, name in enumerate(in_order(set(scope.values()), measured(_scope)))}
    items.sort(key=lambda item: order[scope[item]])


SPARK_FILES = {
    "what Spark computes": (
        "tests/backfill/test_ends.py",
        "tests/backfill/test_failures.py",
        "tests/backfill/test_files.py",
        "tests/backfill/test_golden.py",
        "tests/backfill/test_job.py",
        "tests/backfill/test_order.py",
        "tests/backfill/test_outputs.py",
        "tests/cli/test_backfill.py",
    ),
    "what backfills publish": (
        "tests/backfill/test_aborted.py",
        "tests/backfill/test_fencing.py",
        "tests/backfill/test_split_outputs.py",
        "tests/backfill/test_stale_tasks.py",
        "tests/backfill/test_unknown_outcome.py",
        "tests/interop/test_backfill.py",
    ),
}
"""Files that go to the same worker as each other: a Spark session, with its first job, takes half a minute of CPU."""
_SCOPES = {file: name for name, files in SPARK_FILES.items() for file in files}


def _scope(nodeid: str) -> str:
    """Return what goes to one worker as a whole: a test's file, or several of them."""
    file = nodeid.partition("::")[0]
    return _SCOPES.get(file, file)


class SparkFilesTogether(LoadFileScheduling):
    """`--dist loadfile`, which takes some files as one."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkFilesTogether | None:
    """Give each worker whole files, and those that use Spark to two workers."""
    return SparkFilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def kafka_options() -> Mapping[str, Any]:
    """Options of the shared broker, and of the one that tests may break."""
    return brokers.OPTIONS


@pytest.fixture(scope="session")
def broker_to_break(kafka_options: Mapping[str, Any]) -> Iterator[EmbeddedKafka]:
    """Run one more broker for this process; for `breakable_kafka`."""
    with EmbeddedKafka(**kafka_options) as kafka:
        yield kafka


@pytest.fixture
def breakable_kafka(broker_to_break: EmbeddedKafka) -> EmbeddedKafka:
    """Return a broker that a test may pause, stop, kill and restart.

    Others have used it before, so topics, groups and applications need names of their own.
    """
    with pytest.MonkeyPatch.context() as environment:  # it is not for this test that another broker is started
        environment.setenv("PYTEST_CURRENT_TEST", "fixture broker_to_break")
        brokers.heal(broker_to_break)
    return broker_to_break


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
        "spark.default.parallelism": "1",  # of rows that the driver gives: each part is a task
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
        gateway.proc.wait(300)
        SparkContext._gateway = SparkContext._jvm = None
    os.environ.clear()
    os.environ.update(before)
