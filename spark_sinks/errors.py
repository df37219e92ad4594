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


class SparkCrashed(EventBusError):
    """Spark's JVM ended before a landing did: it was killed or stopped, or ran out of memory. Nothing was lost."""

    retriable: ClassVar[bool] = True


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
    """The error of ours that Spark turned into text on its way from a worker, or else the error as it is."""
    if isinstance(error, EventBusError):
        return error
    if is_gone(spark):
        return SparkCrashed(
            "Spark's Java ended in the midst of the landing: it was killed or stopped, or ran out of memory "
            "(spark.driver.memory). What was committed stays; stop this session and land again to go on"
        )
    found = re.findall(r"^(?:\w+\.)*errors\.(\w+): (.+)$", str(error), re.MULTILINE)
    kind = getattr(errors, found[-1][0], None) if found else None
    if isinstance(kind, type) and issubclass(kind, EventBusError):
        return kind(found[-1][1])
    return error


def is_gone(spark: SparkSession) -> bool:
    """Whether the JVM of a session answers no more."""
    from py4j.protocol import Py4JError

    try:
        context: Any = spark.sparkContext
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):
        return True
