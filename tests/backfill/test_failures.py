"""What a backfill says of a Spark that does not survive."""

import os
import re
import subprocess
import sys

import pytest

PROGRAM = """\
from millrace.backfill.failures import spark_failures
from millrace.cli.backfill import start_session

if __name__ == "__main__":
    spark = start_session("local[1]", "test")
    with spark_failures():
        spark.range(1).selectExpr("id", "repeat(space(cast(1000000 + id AS int)), 1500)").collect()
"""


@pytest.mark.slow
def test_java_that_runs_out_of_memory(tmp_path):
    """It is said, with what helps, also if Java ends before it has told why."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "OutOfMemoryError" in ended.stderr
    assert re.search(
        r"StreamsError: (Spark's Java process no longer answers|An executor did not survive \(OutOf)", ended.stderr
    )
    assert "SPARK_DRIVER_MEMORY=4g" in ended.stderr
