"""Errors of this package on their way through Spark, which converts them to text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from eventbus import errors
from eventbus.errors import EventBusError, SparkCrashed, SparkFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_WORKER_ENDED = re.compile(
    r"Python worker (?:exited unexpectedly|failed to connect back)|SocketException|EOFException|Connection reset"
    r"|Broken pipe|terminated with exception: *(?:$|\n)"
)
"""The text of Spark's errors after the death of a worker that reads and decodes, or of the one that plans a stream.
Spark waits ten seconds for a new one, which is too short on a machine that is busy."""
_TRACEBACK = "Traceback (most recent call last)"


@contextlib.contextmanager
def spark_errors(spark: SparkSession) -> Generator[None]:
    """Convert an error of Spark to one of this package; to `SparkCrashed` if the JVM has ended."""
    try:
        yield
    except Exception as error:
        told = own_error(error, spark)
        if told is error:
            raise
        raise told from error


def own_error(error: BaseException, spark: SparkSession) -> BaseException:
    """Return the error of this package that Spark converted to text between a worker and the driver.

    Spark's own errors become `SparkFailed`, any other error is returned unchanged. The text of Spark's errors is read
    here, because they lose it when the session is stopped.
    """
    if isinstance(error, EventBusError):
        return error
    if is_gone(spark):
        return SparkCrashed(
            "Spark's Java ended in the midst of the landing: it was killed or stopped, or ran out of memory "
            "(spark.driver.memory). What was committed stays; stop this session and land again to go on"
        )
    java = getattr(error, "java_exception", None)  # of py4j, whose own text may have no reason
    text = str(error) if java is None else f"{error}\n{java.toString()}"
    found = re.findall(r"^(?:\w+\.)*errors\.(\w+): (.+)$", text, re.MULTILINE)
    kind = getattr(errors, found[-1][0], None) if found else None
    if isinstance(kind, type) and issubclass(kind, EventBusError):
        return kind(found[-1][1])
    if not _is_of_spark(error):
        return error
    if _WORKER_ENDED.search(text) and _TRACEBACK not in text:
        return SparkCrashed(
            f"A Python worker of Spark ended during the landing ({in_short(text)}). It was killed, or the machine has "
            f"too little memory. What was committed stays. Land again to go on."
        )
    return SparkFailed(f"Spark could not do it: {in_short(text)}")


def in_short(text: str) -> str:
    """Return the message of an error of Spark without stack traces, plans and error classes."""
    if _TRACEBACK in text:  # of a Python worker: what it raised is the first line that is not indented
        lines = text.rpartition(_TRACEBACK)[2].splitlines()[1:]
        raised = next((line for line in lines if line and not line[0].isspace()), "")
        if raised.startswith("ModuleNotFoundError"):
            raised += (
                ". The worker runs another Python than this one. Set PYSPARK_PYTHON on the driver to the Python that "
                "has the package, which must be installed on every machine"
            )
        return f"a Python worker raised {raised}"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "it gave no reason")
    line = re.sub(r"^\[[A-Z_.]+\] ", "", line)
    return re.sub(r"\.? SQLSTATE: .*", "", line)


def _is_of_spark(error: BaseException) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError)


def is_gone(spark: SparkSession) -> bool:
    """True if the JVM of a session has ended."""
    from py4j.protocol import Py4JError

    try:
        context: Any = spark.sparkContext
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):
        return True
