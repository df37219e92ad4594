"""Measure what a log holds as it grows: memory, descriptors, and the CPU time of opening (benchmarks-scale.md).

python benchmarks/scale.py [--only partitions,groups,producers,segments] [--sizes 1,10,100,1000,10000] [--dir FOLDER]

Each size runs in a fresh process. Memory and descriptors do not depend on the load of the machine, CPU time hardly.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core import now_ms, open_broker
from harness import resident_bytes

Broker = Any


def batch(producer_id: int = -1, size_bytes: int = 100) -> bytearray:
    from eventbus.records import BatchBuilder

    builder = BatchBuilder()
    builder.append(b"key", b"v" * size_bytes, (), now_ms())
    if producer_id < 0:
        return bytearray(builder.build())
    return bytearray(builder.build(producer_id=producer_id, producer_epoch=0, base_sequence=0))


def topic(broker: Broker, partitions: int, **configs: str) -> list[Any]:
    from eventbus.broker import TopicSpec
    from eventbus.types import TopicPartition

    broker.create_topics([TopicSpec("log", partitions, configs=configs)], now_ms())
    return [TopicPartition("log", number) for number in range(partitions)]


def partitions(broker: Broker, count: int) -> None:
    """Each holds a record."""
    for place in topic(broker, count):
        broker.produce(place, batch(), now_ms())


def groups(broker: Broker, count: int) -> None:
    """Each has committed an offset."""
    from eventbus.types import OffsetAndMetadata

    [place] = topic(broker, 1)
    for number in range(count):
        broker.groups.commit_offsets(f"group-{number}", {place: OffsetAndMetadata(number)}, now_ms())


def producers(broker: Broker, count: int) -> None:
    """Each is idempotent, and has written a record to the same partition."""
    [place] = topic(broker, 1)
    for producer_id in range(1_000, 1_000 + count):
        broker.produce(place, batch(producer_id), now_ms())


def segments(broker: Broker, count: int) -> None:
    """Small ones: opening costs what their number costs, and a log of 100 GiB has 100 segments."""
    [place] = topic(broker, 1, **{"segment.bytes": "1048576", "retention.ms": "-1", "retention.bytes": "-1"})
    for _ in range(count + 1):
        broker.produce(place, batch(size_bytes=700_000), now_ms())


AXES: dict[str, Callable[[Broker, int], None]] = {
    "partitions": partitions,
    "groups": groups,
    "producers": producers,
    "segments": segments,
}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count


def flush(broker: Broker) -> None:
    while broker.needs_sync:
        pending = broker.begin_sync()
        pending.run()
        broker.complete_sync(pending)


def measure(axis: str, count: int, folder: Path) -> dict[str, float]:
    """Fill a log in a child process, then open it here, so that memory holds nothing of the filling."""
    command = [sys.executable, __file__, "--fill", axis, str(count), str(folder)]
    subprocess.run(command, check=True)
    open_broker(folder / "empty").close(now_ms())  # loads the modules
    memory, files, begin = resident_bytes(), descriptors(), time.process_time()
    broker = open_broker(folder / "log")
    opened_s = time.process_time() - begin
    files = descriptors() - files
    memory = resident_bytes() - memory
    begin = time.process_time()
    for _ in range(100):
        broker.tick(now_ms())
    tick_us = (time.process_time() - begin) * 1e4
    broker.close(now_ms())
    disk = sum(path.stat().st_blocks * 512 for path in (folder / "log").rglob("*") if path.is_file())
    return {
        "open, CPU ms": opened_s * 1e3,
        "memory, MiB": memory / (1 << 20),
        "descriptors": files,
        "tick, us": tick_us,
        "files": sum(path.is_file() for path in (folder / "log").rglob("*")),
        "disk, MiB": disk / (1 << 20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(AXES), help="what grows (%(default)s)")
    parser.add_argument("--sizes", default="1,10,100,1000,10000")
    parser.add_argument("--dir", help="a folder on the disk to use")
    parser.add_argument("--fill", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        axis, count, folder = options.fill
        broker = open_broker(Path(folder) / "log")
        AXES[axis](broker, int(count))
        flush(broker)
        broker.close(now_ms())
        return
    if options.measure:
        axis, count, folder = options.measure
        print(json.dumps(measure(axis, int(count), Path(folder))))
        return
    for axis in options.only.split(","):
        for number, count in enumerate(map(int, options.sizes.split(","))):
            with tempfile.TemporaryDirectory(dir=options.dir) as folder:
                command = [sys.executable, __file__, "--measure", axis, str(count), folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = json.loads(done.stdout)
            if not number:
                print(f"\n| {axis} | {' | '.join(row)} |\n|{' --- |' * (len(row) + 1)}")
            print(f"| {count:,} | {' | '.join(f'{value:,.1f}' for value in row.values())} |", flush=True)


if __name__ == "__main__":
    main()
