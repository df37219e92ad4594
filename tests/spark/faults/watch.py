"""Readers that look at tables again and again while they are landed, and whoever lands them is killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

from spark_sinks.targets.choose import TargetOptions, open_target
from tests.spark.faults.audit import READERS, Reader, differences, kind_of, normal, place_of
from tests.spark.faults.given import Expected, Place


class Watch:
    """For the length of a ``with`` block. ``wanted``: all that may be in a table by now."""

    def __init__(self, tables: Sequence[str], wanted: Callable[[], Expected]) -> None:
        self._tables = tables
        self._wanted = wanted
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks: Counter[str] = Counter()
        """By kind of table: those that found rows."""
        self.failures: list[str] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(0.5):  # whoever lands needs the cores too
            for to in self._tables:
                for reader in READERS[kind_of(to)]:
                    self._look(to, reader)

    def _look(self, to: str, reader: Reader) -> None:
        """What was committed before is there, with its values, no record twice, and nothing that was never sent.

        Of a table with commits also: where a record is, those before it in its partition are.
        """
        try:
            state = open_target(to, options=TargetOptions()).state()
            found = [normal(row) for row in reader(to)] if state is not None and state.schema else []
        except Exception as error:  # of whatever library: torn files have no error of their own
            if not _has_gone(error):
                self.failures.append(f"{to}, {reader.__name__}, while it was landed: {error!r}")
            return
        if state is None or not found:
            return
        reach = Counter(state.offsets)
        if kind_of(to) != "parquet":
            for partition, offset in map(place_of, found):
                reach[partition] = max(reach[partition], offset + 1)

        def is_due(place: Place) -> bool:
            return place[1] < reach[place[0]]

        rows = self._wanted().rows
        wrong = differences(found, {place: row for place, row in rows.items() if is_due(place)}, rows)
        self.failures += [f"{to}, {reader.__name__}, while it was landed: {each}" for each in wrong]
        self.looks[kind_of(to)] += 1


def _has_gone(error: Exception) -> bool:
    """A file that was listed, and removed before it was opened: what a crash left of a batch goes at the next start."""
    return "No such file" in str(error) or "No files found" in str(error)
