"""Kill the pipeline of examples/28_spark_pipeline.py at one step after another, and compare with one that lived.

Run as a program: ``python -m tests.spark.faults.kill_pipeline FOLDER spark|plain``. Each life is a forked child
(imports are paid once) that goes on where the one before was cut off, and ends by SIGKILL at its step. ``plain`` is
without a JVM: what Spark does with a batch, its checkpoint included, is done by a loop.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eventbus import EventBus
from eventbus.client.blocking import BlockingTransaction
from eventbus.types import TopicPartition
from spark_sinks import verify
from spark_sinks.targets.parquet.target import ParquetTarget

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "28_spark_pipeline.py"
LIVES: list[tuple[type, str, int, str]] = [
    (BlockingTransaction, "send_many", 1, "after"),  # departures are sent, and not committed
    (BlockingTransaction, "send_many", 4, "after"),  # the rows of the third batch are
    (BlockingTransaction, "send_offsets", 1, "after"),  # and, this time, its number
    (BlockingTransaction, "__exit__", 2, "after"),  # a batch is committed, which Spark does not know
    (BlockingTransaction, "send_many", 2, "before"),  # a batch is skipped, the next is written, a third begins
    (ParquetTarget, "commit", 2, "before"),  # departures have landed, the hours are written beside their table
    (ParquetTarget, "commit", 1, "after"),
]
PLAIN_LIVES = 5
"""Those that are killed before anything lands."""
BATCHES = 8


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("spark_pipeline", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["spark_pipeline"] = module  # msgspec looks its types up there
    spec.loader.exec_module(module)
    return module


class Rows:
    """What a batch of Spark's is, to `write_back`."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self.are_computed = False
        """Spark stores the state of a batch while it computes the rows, and ends a query that has none."""

    def toArrow(self) -> Rows:
        self.are_computed = True
        return self

    def to_pylist(self) -> list[dict[str, Any]]:
        hour = datetime(2013, 3, 8, self._batch, tzinfo=UTC)
        counts = {"flights": 3, "departed": 2, "minutes": self._batch}
        return [{"airport": airport, "hour": hour, **counts} for airport in ("EWR", "JFK")]


def plainly(example: Any, directory: str) -> None:
    """What Spark's stream does: a batch is done when its checkpoint says so."""
    bus, commits = EventBus(f"file://{directory}/log"), Path(directory) / "commits"
    bus.topic("departures", partitions=3)
    bus.topic("hours", partitions=1)
    with bus.blocking() as b:
        example.publish(b)
        write = example.write_back(b)
        for batch in range(int(commits.read_text()) if commits.exists() else 0, BATCHES):
            rows = Rows(batch)
            write(rows, batch)
            assert rows.are_computed
            commits.write_text(str(batch + 1))


def die_at(owner: type, method: str, call: int, when: str) -> None:
    """Have this process killed at the n-th call of a method."""
    done = getattr(owner, method)
    calls = 0

    def deadly(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = done(*args, **options)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method, deadly)


def live(work: Callable[[], None], death: tuple[type, str, int, str] | None) -> None:
    """In a child; it must end as it should."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if death is not None:
                die_at(*death)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    expected = 0 if death is None else -signal.SIGKILL
    assert os.waitstatus_to_exitcode(status) == expected, f"{death}: {os.waitstatus_to_exitcode(status)}"


def committed(directory: str, kind: type, *places: TopicPartition) -> list[Any]:
    """The values in these partitions."""
    with EventBus(f"file://{directory}/log").blocking() as bus, bus.new_consumer(value=kind) as consumer:
        consumer.assign(places)
        ends, values = consumer.end_offsets(*places), list[Any]()
        while any(consumer.position(place) < ends[place] for place in places):
            values += [record.value for record in consumer.poll(timeout_ms=200)]
    return values


def told(example: Any, directory: str) -> list[Any]:
    """What the topic ``hours`` holds, after a check that all departures were published once."""
    flights = committed(directory, example.Departure, *(TopicPartition("departures", number) for number in range(3)))
    assert len(flights) == len(example.departures())
    hours = committed(directory, example.Hour, example.NEXT_BATCH)
    return sorted(hours, key=lambda hour: (hour.airport, hour.hour, hour.flights, hour.minutes))


def main(folder: str, how: str) -> None:
    example = load_example()
    run = example.main if how == "spark" else lambda directory: plainly(example, directory)
    killed, alive = f"{folder}/killed", f"{folder}/alive"
    for directory in (killed, alive):
        Path(directory).mkdir()
    for death in LIVES if how == "spark" else LIVES[:PLAIN_LIVES]:
        live(lambda: run(killed), death)
    live(lambda: run(killed), None)
    # Records of an aborted transaction have offsets, which move the ends of all batches: both logs begin with one.
    live(lambda: run(alive), LIVES[0])
    live(lambda: run(alive), None)
    hours = told(example, killed)
    assert hours == told(example, alive)
    if how == "spark":
        for topic, schema in (("departures", example.Departure), ("hours", example.Hour)):
            proof = verify(f"{killed}/log", topic, f"{killed}/{topic}", values=True, schema=schema)
            assert proof.ok, proof.problems
    print(f"{len(hours)} records")


if __name__ == "__main__":
    main(*sys.argv[1:])
