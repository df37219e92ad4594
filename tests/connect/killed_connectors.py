"""Connectors that are killed at work, again and again; at the end each line and each row is there once, in order.

``python -m tests.connect.killed_connectors FOLDER TRIALS SEED`` prints what it did; AssertionError: what is wrong.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from eventbus import EventBus
from eventbus.connect import Connectors
from eventbus.connect.file_sink import FileStreamSink
from eventbus.log import storage
from tests.connect.conftest import all_values

ROWS = 600
"""New lines, and new rows, for each life: there is work to be killed at."""
BATCH = 20
STEPS = 200
"""Writes of one life, about; fewer than its records need, or it would not die."""
LONGEST_S = 60


def connectors(folder: Path) -> Connectors:
    return Connectors(
        {"name": "lines", "connector.class": "FileStreamSource", "file": folder / "in.txt", "topic": "lines",
         "batch.size": BATCH},
        {"name": "rows", "connector.class": "JdbcSource", "connection.url": f"sqlite:///{folder / 'shop.db'}",
         "mode": "timestamp+incrementing", "incrementing.column.name": "id", "timestamp.column.name": "changed",
         "table.whitelist": "rows", "topic.prefix": "", "batch.max.rows": BATCH},
        {"name": "out", "connector.class": "FileStreamSink", "file": folder / "out.txt", "topics": "lines"},
        worker={"value.converter": "StringConverter", "offset.flush.interval.ms": 1},
        note=lambda _: None,
    )  # fmt: skip


async def live(folder: Path) -> None:
    """Until it is killed."""
    bus = EventBus(f"file://{folder / 'log'}", fsync="os")
    bus.include(connectors(folder))
    async with bus:
        await anyio.sleep_forever()


async def finish(folder: Path, rows: int) -> None:
    """Bring the rest, and see that all of it is there."""
    bus = EventBus(f"file://{folder / 'log'}", fsync="os")
    bus.include(connectors(folder))
    async with bus:
        await bus.drain()
        lines, values = await all_values(bus, "lines"), await all_values(bus, "rows")
    expected = [f"line {number}" for number in range(rows)]
    assert lines == expected, f"lines in the topic: {len(lines)}, of them different {len({*lines})}"
    ids = [int(value.partition('"id":')[2].partition(",")[0]) for value in values]
    assert ids == [*range(rows)], f"rows in the topic: {len(ids)}, of them different {len({*ids})}"
    written = (folder / "out.txt").read_text().splitlines()
    assert written == expected, f"lines in the file: {len(written)}, of them different {len({*written})}"


def prepare(folder: Path) -> None:
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, changed DATETIME NOT NULL)")
    database.close()


def add(folder: Path, numbers: range) -> None:
    with (folder / "in.txt").open("a") as file:
        file.writelines(f"line {number}\n" for number in numbers)
    with sqlite3.connect(folder / "shop.db") as database:
        times = ((number, f"2023-01-01 00:{number // 6000:02}:{number // 100 % 60:02}") for number in numbers)
        database.executemany("INSERT INTO rows VALUES (?, ?)", times)
    database.close()


def die_at(step: int) -> None:
    """SIGKILL instead of the write with this number: of the log's, the sink's, or of what the sink keeps beside."""
    left = itertools.count(step, -1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not next(left):
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for owner, name in ((storage, "_pwrite"), (FileStreamSink, "put"), (os, "fsync"), (Path, "replace")):
        setattr(owner, name, counted(getattr(owner, name)))


def main(folder: Path, trials: int, seed: int) -> None:
    """Raises AssertionError when a record is lost, doubled, or out of order."""
    chance = random.Random(seed)
    prepare(folder)
    os.fsync = os.fstat  # what a killed process has written stays written: nobody waits for the disk
    steps = [chance.randrange(1, STEPS) for _ in range(trials)]
    for trial, step in enumerate(steps):
        add(folder, range(trial * ROWS, (trial + 1) * ROWS))

        child = os.fork()
        if child == 0:
            signal.alarm(LONGEST_S)
            die_at(step)
            anyio.run(live, folder)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"write {step}: status {status}"
    anyio.run(finish, folder, trials * ROWS)
    print(f"killed {trials} times, at writes {steps}; {trials * ROWS} lines and rows, each once")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
