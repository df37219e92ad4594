"""Run several landings in one Spark session: each until it is caught up, or all of them concurrently until a stop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from spark_sinks.errors import is_gone
from spark_sinks.running import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.2
"""The longest time until a stop is noticed."""
_CREATED_SECONDS = 1.0
"""The time between two checks whether a topic has been created."""


def run_all(
    runs: Sequence[Running], spark: SparkSession, every_ms: int | None, stop: threading.Event | None = None
) -> None:
    """Land each until it is caught up, or all of them every ``every_ms`` until ``stop`` is set or Ctrl-C.

    A stop waits for the end of the current batch. The error of a landing is raised after the other landings were
    stopped or, without ``every_ms``, after they were caught up: a bad topic must not block the others. A topic that
    does not exist yet is landed as soon as it is created.
    """
    stop = stop or threading.Event()
    groups = [[running] for running in runs if running.look()] if every_ms is None else [list(runs)]
    errors: list[Exception] = []
    for group in groups:
        if stop.is_set():
            break
        try:
            _run(group, spark, every_ms, stop)
        except Exception as error:  # raised below, of any type
            if is_gone(spark):
                raise
            errors.append(error)
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and {other}")
        raise errors[0]


def _run(group: Sequence[Running], spark: SparkSession, every_ms: int | None, stop: threading.Event) -> None:
    absent = list(group)
    with ThreadPoolExecutor(len(group), "eventbus-land") as threads:
        queries = _Queries(spark, every_ms, threads)
        try:
            while True:
                for running in [each for each in absent if each.exists()]:
                    absent.remove(running)
                    queries.start(running)
                if absent:
                    stop.wait(_CREATED_SECONDS)
                queries.check()
                if stop.is_set():
                    absent = []
                    for running in group:
                        running.stop()
                if not queries.active and not absent:
                    return
        except KeyboardInterrupt:
            for running in group:
                running.stop()
            raise
        finally:
            for running in group:
                running.close()


class _Queries:
    """The queries of several landings. A thread waits for each: Ctrl-C in a call to the JVM ends the connection."""

    def __init__(self, spark: SparkSession, every_ms: int | None, threads: ThreadPoolExecutor) -> None:
        self._spark = spark
        self._every_ms = every_ms
        self._threads = threads
        self.active: dict[Future[None], Running] = {}

    def start(self, running: Running) -> None:
        while True:
            try:
                running.start(self._spark, self._every_ms)
                break
            except Exception as error:  # the errors of py4j and of Spark have no common base
                if not running.goes_on_after(error):
                    raise
        self.active[self._threads.submit(running.wait)] = running

    def check(self) -> None:
        """Wait briefly. Raise the error of a query that ended, or start a query again whose worker died."""
        for each in wait(self.active, _LOOK_SECONDS, FIRST_EXCEPTION).done:
            running, error = self.active.pop(each), each.exception()
            if error is not None and not running.goes_on_after(error):
                raise error
            if error is not None:
                self.start(running)
