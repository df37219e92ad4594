"""Kill what lands, again and again, and account for every record.

Run as a program: ``python -m tests.spark.faults.kill_landing DIRECTORY TRIALS SEED TO...``. One driver lands all the
tables at once, so one kill meets each of them at another step. In turn it is a Python worker that is killed, the JVM,
and the driver. Readers look at the tables all the while. After each kill the tables are compared with what the log held
up to their offsets; at the end, when all is landed, with all of it.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.spark.faults.audit import audit
from tests.spark.faults.given import Shop
from tests.spark.faults.harness import Lander, end, wait_for
from tests.spark.faults.watch import Watch

COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": 4_096, "min.cleanable.dirty.ratio": "0.01"}
VICTIMS = ("worker", "jvm", "driver")
OPTIONS: dict[str, Any] = {"max_offsets_per_trigger": 50, "quarantine_limit": 1.0}
BATCHES = 3
"""About so many a table has in a trial."""


class Trials:
    """A log, its tables, and one driver after the other."""

    def __init__(self, directory: Path, seed: int, tables: Sequence[str]) -> None:
        self._chance = random.Random(seed)
        self._tables = tables
        self._shop = Shop(directory / "log", seed, **COMPACTED)
        self._shop.sell(120)
        self._shop.compact()
        self.expected = self._shop.expected()
        self._lander = self._new()
        self.failures: list[str] = []
        self.ends: Counter[str] = Counter()
        self.told: list[str] = []
        """What ended landings, in words."""

    def _new(self) -> Lander:
        return Lander(self._shop.path, self._tables, **OPTIONS)

    def trial(self, victim: str) -> None:
        """Have something to land, and kill in the midst of it."""
        told = self._begun(victim)
        while told[-1]["what"] == "done":  # all was landed before so many batches were
            self.ends["done before the kill"] += 1
            told = self._begun(victim)
        time.sleep(self._chance.random() * 0.3)  # anywhere in what it does
        if victim == "driver":
            self._lander.__exit__()
            self._lander = self._new()
            self.ends["driver: killed"] += len(self._tables) - sum(each["what"] == "landed" for each in told)
        else:
            self._kill_in_lander(victim)
        self._audit(f"after a {victim} was killed")

    def _begun(self, victim: str) -> list[dict[str, Any]]:
        """Land, and return what is told up to some batch."""
        self._shop.sell(110)
        self.expected = self._shop.expected()
        self._lander.land()
        told = self._lander.until("batch", self._chance.randint(1, BATCHES * len(self._tables) // 2))
        failed = [each for each in told if each["what"] == "failed"]
        # On a busy machine Spark gives up a worker of its own accord: the landing ends as after a kill, and may go on.
        self.ends["ended by a busy machine"] += sum(each["kind"] == "SparkCrashed" for each in failed)
        self.failures += [f"before a {victim} was killed: {each}" for each in failed if each["kind"] != "SparkCrashed"]
        return told

    def _kill_in_lander(self, victim: str) -> None:
        find = self._lander.jvms if victim == "jvm" else self._lander.workers
        wait_for(lambda: any(map(end, find()[:1])), f"the end of a {victim}")  # workers come and go
        for each in self._lander.until("done"):
            if each["what"] == "failed":
                self.ends[f"{victim}: {each['kind']}"] += 1
                self.told.append(f"{victim}: {each['kind']}: {each['text'][:300]}")
            elif each["what"] == "landed":
                self.ends[f"{victim}: survived"] += 1

    def finish(self) -> None:
        """What is left is landed by whoever lives."""
        with self._lander as lander:
            lander.finish()
        self._audit("at the end", complete=True)

    def _audit(self, when: str, *, complete: bool = False) -> None:
        for to in self._tables:
            self.failures += [f"{when}: {each}" for each in audit(to, self.expected, complete=complete)]


def main(directory: Path, trials: int, seed: int, tables: Sequence[str]) -> int:
    this = Trials(directory, seed, tables)
    with Watch(tables, lambda: this.expected) as watch:
        for number in range(trials):
            started = time.monotonic()
            this.trial(VICTIMS[number % len(VICTIMS)])
            took = time.monotonic() - started
            print(f"{number + 1}: {took:.1f} s, {dict(this.ends)}", *this.failures, *watch.failures, file=sys.stderr)
        this.finish()
    failures = [*this.failures, *watch.failures]
    for line in (*failures[:20], *dict.fromkeys(this.told)):
        print(line)
    for name, count in this.ends.most_common():
        print(f"{name}: {count} landings")
    print(f"{len(watch.looks)} kinds of tables were looked at, {watch.looks.total()} times")
    print(f"{trials} kills of {len(tables)} tables, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
