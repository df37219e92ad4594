"""Kill what lands, again and again, and account for every record.

Run as a program: ``python -m tests.spark.faults.kill_landing DIRECTORY TRIALS SEED TO...``. One driver lands all the
tables at once, so one kill meets each of them at another step. In turn it is a Python worker that is killed, the JVM,
and the driver. After each kill the tables are compared with what the log held up to their offsets; at the end, when
all is landed, with all of it.
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
from tests.spark.faults.harness import Lander, end

COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": 4_096, "min.cleanable.dirty.ratio": "0.01"}
VICTIMS = ("worker", "jvm", "driver")
OPTIONS: dict[str, Any] = {"max_offsets_per_trigger": 40, "quarantine_limit": 1.0}


class Trials:
    """A log, its tables, and one driver after the other."""

    def __init__(self, directory: Path, seed: int, tables: Sequence[str]) -> None:
        self._chance = random.Random(seed)
        self._tables = tables
        self._shop = Shop(directory / "log", seed, **COMPACTED)
        self._shop.sell(200)
        self._shop.compact()
        self._lander = self._new()
        self.failures: list[str] = []
        self.ends: Counter[str] = Counter()
        self.told: list[str] = []
        """What ended landings, in words."""

    def _new(self) -> Lander:
        return Lander(self._shop.path, self._tables, **OPTIONS)

    def trial(self, victim: str) -> None:
        """Have something to land, and kill in the midst of it."""
        self._shop.sell(150)
        self._lander.land()
        self._lander.until("batch", self._chance.randint(1, 3 * len(self._tables)))
        time.sleep(self._chance.random() * 0.4)  # anywhere in what it does
        if victim == "driver":
            self._lander.__exit__()
            self._lander = self._new()
            self.ends["driver"] += 1
        else:
            self._kill_in_lander(victim)
        self._audit(f"after a {victim} was killed")

    def _kill_in_lander(self, victim: str) -> None:
        there = self._lander.jvms() if victim == "jvm" else self._lander.workers()
        if not there or not end(self._chance.choice(there)):
            self.ends[f"{victim} was not there"] += 1
        told = self._lander.until("done")
        for each in told:
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
        expected = self._shop.expected()
        for to in self._tables:
            self.failures += [f"{when}: {each}" for each in audit(to, expected, complete=complete)]


def main(directory: Path, trials: int, seed: int, tables: Sequence[str]) -> int:
    this = Trials(directory, seed, tables)
    for number in range(trials):
        started = time.monotonic()
        this.trial(VICTIMS[number % len(VICTIMS)])
        print(f"{number + 1}: {time.monotonic() - started:.1f} s, {dict(this.ends)}", *this.failures, file=sys.stderr)
    this.finish()
    for line in (*this.failures[:20], *dict.fromkeys(this.told)):
        print(line)
    ends = ", ".join(f"{name} {count}" for name, count in this.ends.most_common())
    print(f"{trials} kills of {len(tables)} tables ({ends}), {len(this.failures)} failures")
    return 1 if this.failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
