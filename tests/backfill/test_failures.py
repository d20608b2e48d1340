"""What a backfill says of a Spark that does not survive."""

import os
import re
import subprocess
import sys

import pytest

from millrace.backfill.failures import spark_failures
from millrace.errors import FailedProcessingError, StreamsError

OUT_OF_MEMORY = """\
from millrace.backfill.failures import spark_failures
from millrace.cli.backfill import start_session

if __name__ == "__main__":
    spark = start_session("local[1]", "test")
    with spark_failures(spark):
        spark.range(1).selectExpr("id", "repeat(space(cast(1000000 + id AS int)), 1500)").collect()
"""

STOPPED_AND_KILLED = """\
from millrace.backfill.failures import spark_failures
from millrace.cli.backfill import start_session
from millrace.errors import StreamsError

def collect():
    try:
        with spark_failures(spark):
            spark.range(1).collect()
    except StreamsError as error:
        print(error)

if __name__ == "__main__":
    spark = start_session("local[1]", "test")
    collect()
    spark.sparkContext._jsc.sc().stop()
    collect()
    java = spark.sparkContext._gateway.proc
    java.kill()
    java.wait()
    collect()
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_java_that_runs_out_of_memory(tmp_path):
    """It is said, with what helps, also if Java ends before it has told why."""
    ended = run(tmp_path, OUT_OF_MEMORY)
    assert ended.returncode == 1
    assert "OutOfMemoryError" in ended.stderr
    assert re.search(
        r"StreamsError: (Spark's Java process no longer answers|An executor did not survive \(OutOf)", ended.stderr
    )
    assert "SPARK_DRIVER_MEMORY=4g" in ended.stderr


@pytest.mark.thorough
def test_java_that_has_stopped_or_is_gone(tmp_path):
    """Whatever fails because of it, that is what is said."""
    ended = run(tmp_path, STOPPED_AND_KILLED)
    assert ended.returncode == 0
    first, second = ended.stdout.splitlines()
    assert first == second
    assert first.startswith("Spark's Java process no longer answers")


def test_the_cause_of_an_error_does_not_hide_it(spark):
    """Which node has failed, and where, is what the user needs."""

    def fail(batches):
        for _ in batches:
            raise FailedProcessingError("node n failed at offset 7") from MemoryError()
        yield from ()

    with pytest.raises(FailedProcessingError, match="node n failed at offset 7"), spark_failures(spark):
        spark.range(1).mapInArrow(fail, "id long").collect()


def test_method_that_another_spark_does_not_have(spark):
    """Its Java has not gone."""
    with pytest.raises(StreamsError, match=r"lacks what a backfill needs: .*noSuchMethod"), spark_failures(spark):
        spark.range(1)._jdf.noSuchMethod(1)


def test_connection_of_something_else_that_broke(spark):
    """Spark is not blamed for it."""
    with pytest.raises(BrokenPipeError), spark_failures(spark):
        raise BrokenPipeError


def run(tmp_path, text):
    """Run a program of its own, as a process has but one Java."""
    program = tmp_path / "program.py"
    program.write_text(text)
    path = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
