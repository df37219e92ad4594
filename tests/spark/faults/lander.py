"""A process that lands: ``python -m tests.spark.faults.lander LOG OPTIONS TO...``, driven by lines on standard input.

``land``: all tables at once, each in a thread, in one session. It tells what happens in lines of JSON. Where Java was
killed, the next round has a session of its own making. End of input: it ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from typing import Any

import msgspec

from spark_sinks import LandProgress, land, spark_session
from spark_sinks.errors import is_gone
from tests.spark.conftest import QUICK_JVM
from tests.spark.faults.given import TOPIC

_telling = threading.Lock()


def tell(**what: Any) -> None:
    with _telling:
        os.write(1, msgspec.json.encode(what) + b"\n")


class Round:
    """One call of `land` for each table."""

    def __init__(self, log: str, options: dict[str, Any], spark: Any) -> None:
        self._log = log
        self._options = options
        self._spark = spark

    def run(self, tables: list[str]) -> None:
        threads = [threading.Thread(target=self._land, args=(number, to)) for number, to in enumerate(tables)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _land(self, number: int, to: str) -> None:
        def progress(landed: LandProgress) -> None:
            tell(what="batch", table=number, batches=landed.batches)

        try:
            report = land(self._log, TOPIC, to, spark=self._spark, progress=progress, **self._options)
        except BaseException as error:
            tell(what="failed", table=number, kind=type(error).__name__, text=str(error)[:2_000])
        else:
            assert isinstance(report, tuple)
            tell(what="landed", table=number, rows=report.rows, rejected=report.rejected, lag=report.lag)


def main(log: str, options: str, tables: list[str]) -> None:
    how = msgspec.json.decode(options, type=dict[str, Any])
    own_session = how.pop("own_session", False)
    faulthandler.register(signal.SIGUSR1)
    install(how.pop("fault", None))
    spark: Any = None
    for _ in sys.stdin:
        if spark is None and not own_session:
            spark = spark_session("faults", conf={"spark.driver.extraJavaOptions": QUICK_JVM}, log_level="OFF")
        tell(what="ready")
        Round(log, how, spark).run(tables)
        if spark is not None and is_gone(spark):
            spark.stop()
            spark = None
        tell(what="done")


def install(fault: str | None) -> None:
    """Have something go wrong in this process."""
    if fault is not None:
        from tests.spark.faults import broken

        getattr(broken, fault)()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
