"""How a session ends that nobody stops."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_sinks.session.spark import _disconnect

pytestmark = pytest.mark.system

_SESSION = """
import atexit
from spark_sinks.session import spark as session

class Said:
    def __init__(self, word):
        self.stop = lambda: print(word)

jvm, spark = Said("jvm"), Said("session")
atexit.register(jvm.stop)
session._end_jvm_with(spark, jvm)
"""


def ends(*, stopped: bool) -> list[str]:
    code = _SESSION + ("spark.stop(); print('stopped')" if stopped else "")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_a_session_ends_before_its_jvm() -> None:
    """Its accumulators listen to the JVM: gone under them, it is a stack trace at the end of a good program."""
    assert ends(stopped=False)[:2] == ["session", "jvm"]


def test_a_session_that_was_stopped_is_not_stopped_again() -> None:
    assert ends(stopped=True)[:3] == ["session", "jvm", "stopped"]
    assert ends(stopped=True).count("session") == 1


def test_an_error_of_spark_can_be_read_after_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors.exceptions.captured import StreamingQueryException

    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(shutdown=list))
    monkeypatch.setattr(SparkContext, "_jvm", SimpleNamespace())
    try:
        raise StreamingQueryException("no state for batch 4", "")
    except StreamingQueryException as error:
        _disconnect(cast("Any", SimpleNamespace(stop=list)))
        assert "no state for batch 4" in str(error)
        assert type(error).__name__ == "StreamingQueryException"
    assert SparkConf().set("spark.a", "b").get("spark.a") == "b"  # the first step to the next session
