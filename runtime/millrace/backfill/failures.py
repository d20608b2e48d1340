"""What went wrong in an executor, as the exception it was there.

Spark passes on the text of a Python traceback, deep inside its own messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace import errors

__all__ = ["LINKAGE_ERRORS", "first_line", "spark_failures", "text_of"]

_RAISED: Final = re.compile(
    r"^(?:\w+\.)*(\w+Error): (.*(?:\n(?!\s*(?:at |Traceback|File |\w+(?:\.\w+)+Error|\n)).+)*)", re.MULTILINE
)
_LOST: Final = re.compile(
    r"ExecutorLostFailure|OutOfMemoryError|MemoryError|No space left on device|exit code 137|OOMKilled|"
    r"Python worker exited unexpectedly"
)
LINKAGE_ERRORS: Final = (
    "NoSuchMethodError|NoSuchFieldError|NoClassDefFoundError|AbstractMethodError|IncompatibleClassChangeError"
)
"""What Java says of classes that were compiled for others than those that are there; part of a pattern."""
_LINKAGE: Final = re.compile(rf"\b({LINKAGE_ERRORS}): (.*)")
_MISSING: Final = re.compile(r"py4j\.Py4JException: (.*)")
"""What Java says of a method that it does not have."""
_CHAINED: Final = re.compile(
    r"^(?:The above exception was the direct cause of the following exception|"
    r"During handling of the above exception, another exception occurred):\n",
    re.MULTILINE,
)
"""What a Python traceback has before the next exception of a chain; the last one is what was raised in the end."""
_SOURCE: Final = re.compile(r"^ {2,}.*\n", re.MULTILINE)
"""What a Python traceback quotes of programs."""
_CALLING: Final = re.compile(r"^An error occurred while calling \S+\n: ")
"""What PySpark puts before that."""

_MORE: Final = "With --master local, SPARK_DRIVER_MEMORY=4g in the environment gives more than 1 GB"
_RESULT_LOST: Final = (
    "A result did not reach Spark's driver (TaskResultLost): its executor had ended, or Java had too little memory for it. "
    f"Give driver and executors more memory. {_MORE}"
)
_GONE: Final = (
    "Spark's Java process no longer answers, and says above why. If it had too little memory, SPARK_DRIVER_MEMORY=4g in the "
    "environment gives it more than 1 GB"
)


@contextmanager
def spark_failures(spark: SparkSession) -> Iterator[None]:
    """Raise what Spark reports from this block as the error that it was in the executor.

    Args:
        spark: What the block uses.

    Raises:
        StreamsError: of its own kind if it was one of ours.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise _translated(text_of(error), spark) from error
    except (Py4JError, ConnectionError, EOFError) as error:  # which say no more than that
        if not _has_ended(spark):
            if missing := _MISSING.search(text_of(error)):
                raise errors.StreamsError(f"Spark {spark.version} lacks what a backfill needs: {missing[1]}") from error
            if not isinstance(error, Py4JError):
                raise  # of another connection
        raise errors.StreamsError(_GONE) from error


def text_of(error: Exception) -> str:
    """Return what Spark says of a failure: nothing if its Java process, which is asked for it, has ended by now."""
    try:
        return str(error)
    except (Py4JError, ConnectionError, EOFError):
        return ""


def _translated(text: str, spark: SparkSession) -> errors.StreamsError:
    text = _CHAINED.split(text)[-1]
    if lost := _LOST.search(_SOURCE.sub("", text)):
        return errors.StreamsError(
            f"An executor did not survive ({lost[0]}): give executors more memory or local disk, or use more of them. {_MORE}"
        )
    if "TaskResultLost" in text:
        return errors.StreamsError(_RESULT_LOST)
    if (linkage := _LINKAGE.search(text)) and "org.apache.spark" in linkage[2]:
        return errors.ConfigError(
            f"A package of Spark's (spark.jars.packages) was made for another version than Spark {pyspark.__version__}, and does "
            "not work with it. Take its release for this version or, if there is none, give its data as Parquet files. "
            f"Java says: {linkage[0]:.300}"
        )
    for name, message in reversed(_RAISED.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.StreamsError):
            return kind(message.strip())
    if _has_ended(spark):
        return errors.StreamsError(_GONE)
    if raised := _RAISED.findall(text):
        return errors.StreamsError(f"Spark could not run a task: {raised[-1][0]}: {raised[-1][1].strip()}")
    return errors.StreamsError(f"Spark could not run a task: {first_line(text)}")


def first_line(text: str) -> str:
    """Return what comes first in what Spark says of a failure."""
    lines = _CALLING.sub("", text).strip().splitlines()
    return lines[0] if lines else "it does not say why"


def _has_ended(spark: SparkSession) -> bool:
    """Whether its Java has stopped, which makes calls fail with whatever was under way."""
    try:
        return spark.sparkContext.defaultParallelism < 1  # a stopped one does not say
    except (PySparkException, Py4JError, ConnectionError, EOFError):
        return True
