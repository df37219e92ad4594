"""Several landings in one session: one after the other until they are caught up, or all at once for good."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from spark_sinks.errors import is_gone
from spark_sinks.running import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.2
"""How long a stop may go unnoticed."""


def run_all(
    runs: Sequence[Running], spark: SparkSession, every_ms: int | None, stop: threading.Event | None = None
) -> None:
    """Land each until it is caught up, or all of them every ``every_ms`` until ``stop`` is set or Ctrl-C.

    A stop lets the batch that runs come to its end. Raises what ended a landing: of those for good the others are
    stopped first, of the others the rest is landed first, so that one bad topic does not keep them all waiting.
    """
    stop = stop or threading.Event()
    groups = [[running] for running in runs if running.look()] if every_ms is None else [list(runs)]
    errors: list[Exception] = []
    for group in groups:
        if stop.is_set():
            break
        try:
            _run(group, spark, every_ms, stop)
        except Exception as error:  # whatever it is, it is raised below
            if is_gone(spark):
                raise
            errors.append(error)
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"and {other}")
        raise errors[0]


def _run(group: Sequence[Running], spark: SparkSession, every_ms: int | None, stop: threading.Event) -> None:
    # Waited for in threads: Ctrl-C in the middle of a call to the JVM would break the connection to it.
    with ThreadPoolExecutor(len(group), "eventbus-land") as waiting:
        try:
            for running in group:
                running.start(spark, every_ms)
            ends = {waiting.submit(running.wait) for running in group}
            while True:
                done, ends = wait(ends, _LOOK_SECONDS, FIRST_EXCEPTION)
                for each in done:
                    each.result()
                if stop.is_set():
                    for running in group:
                        running.stop()
                if not ends:
                    return
        except KeyboardInterrupt:
            for running in group:
                running.stop()
            raise
        finally:
            for running in group:
                running.close()
