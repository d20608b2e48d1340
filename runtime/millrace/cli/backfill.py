"""`millrace backfill`: computes an application's state from its history with Spark, and hands it over.

PySpark is imported after all checks that do not need it: it is an extra, and needs Java.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.application import (
    Application,
    ApplicationIdOption,
    EntrypointArgument,
    ManifestOption,
    SettingOption,
    application,
    show,
)
from millrace.cli.errors import report
from millrace.dev.java import spark_java_home
from millrace.errors import (
    ConfigError,
    InvalidTimestampError,
    ProductionError,
    SerializationError,
    StreamsError,
    UnavailableSerdeError,
    UnsupportedFeatureError,
    UnusableHistoryError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.backfill.sources import FileSource
    from millrace.topology import Topology

_FILES = "://"
_PARQUET = "parquet://"
_TOO_LARGE = "(MSG_SIZE_TOO_LARGE)"
"""Part of the error if a record is larger than a topic or the producer allows."""


class Outputs(StrEnum):
    """Which records of output topics are written."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class DiagramFormat(StrEnum):
    """The format in which stages are shown."""

    MERMAID = "mermaid"
    SVG = "svg"


class Progress(StrEnum):
    """How progress is shown."""

    BAR = "bar"
    JSON = "json"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Program:
    """Imports the user's program; pickled into Spark's executors, where the same files must be."""

    application: Application

    def __call__(self) -> Topology:
        """Return the topology."""
        return self.application.topology()


def backfill(
    context: typer.Context,
    entrypoint: EntrypointArgument = None,
    file: ManifestOption = None,
    application_id: ApplicationIdOption = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="HOST:PORT,…", help="Addresses of brokers.", show_default=False)
    ] = None,
    config: SettingOption = None,
    secrets_dir: Annotated[
        Path | None,
        typer.Option(
            "--secrets-dir", metavar="DIR", help="Where the manifest's secrets are mounted.", show_default=False
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="kafka|parquet://…|FILE",
            help="Where the history is: Kafka, Parquet files, or a file (YAML or JSON) that maps topics to files and columns.",
        ),
    ] = "kafka",
    outputs: Annotated[
        Outputs, typer.Option("--outputs", help="What to write to output topics: the last record per key, or all.")
    ] = Outputs.NONE,
    sink: Annotated[
        str,
        typer.Option(
            "--sink", metavar="kafka|parquet://…", help="Hand over in Kafka, or write the final tables as Parquet."
        ),
    ] = "kafka",
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Spark's master; by default local[*].", show_default=False),
    ] = None,
    allow_missing_history: Annotated[
        bool,
        typer.Option(
            "--allow-missing-history", help="Continue although Kafka has deleted the beginning of the history."
        ),
    ] = False,
    allow_side_effects: Annotated[
        bool, typer.Option("--allow-side-effects", help="Let peek, foreach and print run again for every record.")
    ] = False,
    ignore_wall_clock: Annotated[
        bool, typer.Option("--ignore-wall-clock", help="Compute without calling wall-clock punctuators.")
    ] = False,
    plan_hash: Annotated[
        str | None, typer.Option("--plan-hash", help="Refuse a topology with a different plan.", show_default=False)
    ] = None,
    transaction_records: Annotated[
        int, typer.Option("--transaction-records", min=1, help="How many records one transaction may have.")
    ] = 10_000_000,
    attempt_of: Annotated[
        str | None,
        typer.Option(
            "--attempt-of",
            metavar="NAME",
            help="Do nothing if a backfill of this name has handed over, and write no output twice.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compute and report, without writing.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show the stages as a diagram and exit.")] = False,
    form: Annotated[DiagramFormat, typer.Option("--format", help="The diagram's format.")] = DiagramFormat.MERMAID,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the diagram to a file.", show_default=False)
    ] = None,
    progress: Annotated[Progress, typer.Option("--progress", help="How to show progress.")] = Progress.BAR,
) -> None:
    """Compute an application's state from its history with Spark, so that the application continues from there.

    The application must be stopped. Its stores' final contents are written to its changelogs, and the offsets at which it
    continues are committed: in one transaction, or in several if there are more records than `--transaction-records`. Needs
    Java 17 or newer, and `pip install 'millrace-streams[backfill]'`.

    Exit codes: 0 done · 1 failed · 2 refused: change something first. For example:

    - `millrace backfill -f streamsapp.yaml --explain --format svg -o backfill.svg`
    - `millrace backfill -f streamsapp.yaml --dry-run`
    - `millrace backfill -f streamsapp.yaml --from history.yaml --outputs last`
    - `millrace backfill -f streamsapp.yaml --sink parquet:///data/tables`
    """
    from millrace.cli.backfill_report import Reporter
    from millrace.kafka.client_settings import ClientSettings
    from millrace.kafka.connection_check import check_connection

    reporter = Reporter(as_json=progress is Progress.JSON, bar=progress is Progress.BAR)
    try:
        app = application(
            entrypoint,
            file,
            settings=config or (),
            options={"application.id": application_id},
            bootstrap=bootstrap,
            secrets_dir=secrets_dir,
        )
        app.check_settings()
        if explain:
            show(_diagram(app, form), output)
            return
        tables = _tables(sink)
        sources = _sources(source, app)
        # Find import errors and unreachable brokers before Spark starts.
        app.topology()
        check_connection(ClientSettings(app.config, "backfill"))
        only_kafka = source == "kafka" and tables is None
        spark = start_session(master, f"backfill of {app.config.application_id}", only_kafka=only_kafka)
        try:
            from millrace.backfill.collector import Outputs as Kept
            from millrace.backfill.run import BackfillSpec, run_backfill

            spec = BackfillSpec(
                Program(app),
                app.settings,
                sources(spark),
                Kept(outputs.value),
                tables=tables,
                dry_run=dry_run,
                allow_missing_history=allow_missing_history,
                side_effects=allow_side_effects,
                wall_clock_punctuators=ignore_wall_clock,
                plan_hash=plan_hash,
                transaction_records=transaction_records,
                attempt_of=attempt_of,
            )
            with _unusable_history(), reporter, reporter.watching(spark) as stages:
                result = run_backfill(spark, spec, reporter.phase, stages)
            # Before anything else can fail: after this report nobody starts the backfill again.
            reporter.report(result, dry_run=dry_run, tables=tables)
        finally:
            _stop(spark)
    except StreamsError as error:
        code = report(error, verbose=bool((context.parent or context).params.get("verbose")))
        reporter.failed(error)  # after the text, however long it is: only the end of a long log is read
        raise typer.Exit(code) from None


def _stop(spark: SparkSession) -> None:
    """Stop Spark. If its Java is gone, that error is already on its way, and one raised here would hide it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(Py4JError, ConnectionError, EOFError):
        spark.stop()


@contextmanager
def _unusable_history() -> Iterator[None]:
    """Turn this block's errors that only depend on records into final ones; user code may have called a service that was down.

    Raises:
        UnusableHistoryError: another attempt would fail at the same record.
    """
    try:
        yield
    except UnavailableSerdeError:
        raise
    except (SerializationError, InvalidTimestampError, ProductionError) as error:
        if isinstance(error, ProductionError) and _TOO_LARGE not in str(error):
            raise
        raise UnusableHistoryError(str(error)) from error


def _diagram(app: Application, form: DiagramFormat) -> str:
    from millrace.cli.backfill_report import graph_of_backfill
    from millrace.kafka.client_settings import ClientSettings
    from millrace.kafka.clients import open_admin
    from millrace.kafka.connection_check import check_connection
    from millrace.kafka.internal_topics import partition_counts
    from millrace.topology.diagram import mermaid, svg

    settings = ClientSettings(app.config, "backfill")
    check_connection(settings)
    plan = app.topology().build(app.config).plan()
    draw = svg if form is DiagramFormat.SVG else mermaid
    return draw([graph_of_backfill(plan, partition_counts(plan, open_admin(settings.admin())))])


def _tables(sink: str) -> str | None:
    if sink == "kafka":
        return None
    if not sink.startswith(_PARQUET):
        raise ConfigError(f"--sink {sink} is not known: give kafka, or a folder like parquet:///data/tables")
    return _path(sink)


def _path(url: str) -> str:
    """Return Spark's path: `parquet:///data` is a local folder, `parquet://s3a://bucket/data` any other."""
    return url.removeprefix(_PARQUET)


def _sources(source: str, app: Application) -> Callable[[SparkSession], tuple[FileSource, ...]]:
    """Return a function that returns the files to read; it needs Spark only for a table's columns that nothing describes."""
    if source == "kafka":
        return lambda _: ()
    if source.startswith(_PARQUET):
        from millrace.plan.topology_plan import external_source_topics

        topics = sorted(external_source_topics(app.topology().build(app.config).plan()))
        if len(topics) != 1:
            raise ConfigError(
                f"The application reads {len(topics)} topics ({', '.join(topics)}): say in a file which of them is in {source} "
                "(--from FILE)"
            )

        def table(spark: SparkSession) -> tuple[FileSource, ...]:
            from millrace.backfill.file_history import source_of_table

            return (source_of_table(spark, topics[0], _path(source)),)

        return table
    if _FILES in source:
        raise ConfigError(f"--from {source} is not known: give kafka, parquet://FOLDER, or a file that maps columns")
    from millrace.backfill.sources import read_sources

    found = read_sources(Path(source))
    return lambda _: found


def start_session(master: str | None, name: str, *, only_kafka: bool = False) -> SparkSession:
    """Start Spark, or join the one that `spark-submit` has started this process for.

    Args:
        master: Spark's, or None for this machine.
        name: the name that Spark shows.
        only_kafka: whether only Kafka is read and written: then Java itself handles few rows.

    Raises:
        UnsupportedFeatureError: PySpark is not installed.
        JavaNotFoundError: there is no Java, or none that is new enough.
        StreamsError: Spark does not start.
    """
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedFeatureError(
            "Backfills need Spark, which is not installed: `pip install 'millrace-streams[backfill]'`"
        )
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(spark_java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    # Reading rows back from disk keeps all rows since the stream's last reset in memory: 100 batches of 4 MB.
    builder = builder.appName(name).config("spark.serializer.objectStreamReset", "1")
    # A copy of a task that writes a changelog partition fences the first one, and the next copy fences it: none would ever end.
    builder = builder.config("spark.speculation", "false")
    if not submitted:
        builder = builder.master(master or "local[*]").config("spark.ui.showConsoleProgress", "false")
        if (master or "local").startswith("local"):
            builder = builder.config("spark.ui.enabled", "false").config("spark.driver.bindAddress", "127.0.0.1")
            builder = builder.config("spark.driver.host", "127.0.0.1")
            builder = builder.config("spark.python.daemon.module", "millrace.backfill.worker_daemon")
            java = ["-XX:G1HeapRegionSize=4m"]  # rows of 1 MB would take up two regions of 1 MB each, and not be moved
            if only_kafka:  # full compilation would cost several times what it saves
                java.append("-XX:TieredStopAtLevel=1")
            builder = builder.config("spark.driver.defaultJavaOptions", " ".join(java))
    try:
        spark: SparkSession = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        where = "" if master is None else f" with --master {master}"
        raise StreamsError(f"Spark does not start{where}, for the reason that it gives above") from error
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.adaptive.enabled", "false")  # a Spark partition is a task: none may be merged or split
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "false")  # what is packed has the usual types
    # The driver's own Python has it off anyway, and workers are only reused with the same setup.
    spark.conf.set("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")
    given = spark.sparkContext.getConf()
    if not given.contains("spark.sql.session.timeZone"):
        spark.conf.set("spark.sql.session.timeZone", "UTC")  # for times in files without a zone: not this machine's
    if not given.contains("spark.sql.shuffle.partitions"):
        spark.conf.set("spark.sql.shuffle.partitions", str(2 * spark.sparkContext.defaultParallelism))
    return spark
