"""Errors of ours on their way through Spark, which makes text of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, ClassVar

from eventbus import errors
from eventbus.errors import EventBusError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_TRACEBACK = "Traceback (most recent call last)"


class SparkCrashed(EventBusError):
    """Spark's JVM ended before a landing did: it was killed or stopped, or ran out of memory. Nothing was lost."""

    retriable: ClassVar[bool] = True


class SparkFailed(EventBusError):
    """Spark refused the work or could not do it, for instance what a ``transform`` asked of it. Nothing was lost."""


@contextlib.contextmanager
def spark_errors(spark: SparkSession) -> Generator[None]:
    """Have what Spark raises leave as an error of ours, where it is one; `SparkCrashed` when the JVM is gone."""
    try:
        yield
    except Exception as error:
        told = own_error(error, spark)
        if told is error:
            raise
        raise told from error


def own_error(error: BaseException, spark: SparkSession) -> BaseException:
    """The error of ours that Spark turned into text on its way from a worker, `SparkFailed` for Spark's own errors, or
    else the error as it is.

    Spark's own are asked for their words here: once the session is stopped, they have none.
    """
    if isinstance(error, EventBusError):
        return error
    if is_gone(spark):
        return SparkCrashed(
            "Spark's Java ended in the midst of the landing: it was killed or stopped, or ran out of memory "
            "(spark.driver.memory). What was committed stays; stop this session and land again to go on"
        )
    text = str(error)
    found = re.findall(r"^(?:\w+\.)*errors\.(\w+): (.+)$", text, re.MULTILINE)
    kind = getattr(errors, found[-1][0], None) if found else None
    if isinstance(kind, type) and issubclass(kind, EventBusError):
        return kind(found[-1][1])
    return SparkFailed(f"Spark could not do it: {in_short(text)}") if _is_of_spark(error) else error


def in_short(text: str) -> str:
    """What a person needs of an error of Spark's: without stack traces, plans and classes of errors."""
    if _TRACEBACK in text:  # of a Python worker: what it raised is the first line that is not indented
        lines = text.rpartition(_TRACEBACK)[2].splitlines()[1:]
        raised = next((line for line in lines if line and not line[0].isspace()), "")
        return f"a Python worker raised {raised}"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "it did not say why")
    line = re.sub(r"^\[[A-Z_.]+\] ", "", line)
    return re.sub(r"\.? SQLSTATE: .*", "", line)


def _is_of_spark(error: BaseException) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | Py4JError)


def is_gone(spark: SparkSession) -> bool:
    """Whether the JVM of a session answers no more."""
    from py4j.protocol import Py4JError

    try:
        context: Any = spark.sparkContext
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):
        return True
