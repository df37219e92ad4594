"""Count what each path costs that a user pays for, and compare the counts with their upper bounds.

python benchmarks/counts.py [--only NAME] [--functions] [--strace]

Times differ from run to run, counts do not: `tests/test_counts.py` fails if a count exceeds its bound in `PATHS` or
`MODULES`. A change that makes a count worse also changes the bound, and one that makes it better lowers it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec

from eventbus.log import storage

WARM_UP = 10
EACH = 10
"""Repetitions in one window. A count is the mean of a window."""
WINDOWS = 3
"""The lowest window counts, because the housekeeping of a real clock may run in one of them."""

_LOOP_TURN: CodeType = asyncio.base_events.BaseEventLoop._run_once.__code__


class Counts(NamedTuple):
    """The counts of one operation, or their bounds."""

    calls: float
    """Python functions called, and coroutines resumed, in the thread of the event loop."""
    turns: float
    """Iterations of the event loop."""
    flushes: float
    written_bytes: float
    """Bytes that the process writes to files."""


MODULES = {
    "import eventbus": ("import eventbus", 53),
    "import EventBus": ("from eventbus import EventBus", 134),
    'EventBus("memory://")': ("from eventbus import EventBus; EventBus('memory://')", 371),
    "eventbus --version": ("import eventbus.cli; eventbus.cli.main(['--version'])", 54),
}
"""The modules in `sys.modules` after a program. A bare interpreter has about 30."""


class Order(msgspec.Struct):
    id: int
    item: str


Operation = Callable[[], Awaitable[object]]


# -- the paths ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def publish(url: str) -> AsyncGenerator[Operation]:
    from eventbus import EventBus

    async with EventBus(url, auto_create_topics=True) as bus:
        yield lambda: bus.send("orders", Order(1, "lamp"), key="k")


@asynccontextmanager
async def publish_and_handle(url: str, *, fails: bool = False) -> AsyncGenerator[Operation]:
    from dlq import Retry
    from eventbus import EventBus

    bus, handled = EventBus(url, auto_create_topics=True), asyncio.Event()

    async def bill(order: Order) -> None:
        handled.set()
        if fails:
            raise ValueError(order.item)

    if fails:  # by default a transaction moves the records that failed within some milliseconds: here it moves each
        bus.consumer("orders", group="billing", retry=Retry(delays=["1h"]), commit_every=1)(bill)
    else:
        bus.consumer("orders", group="billing")(bill)

    async def send() -> None:
        handled.clear()
        await bus.send("orders", Order(1, "lamp"))
        await handled.wait()

    async with bus:
        yield send


@asynccontextmanager
async def send_many(url: str) -> AsyncGenerator[Operation]:
    from eventbus import EventBus

    orders = [Order(number, "lamp") for number in range(1_000)]
    async with EventBus(url, auto_create_topics=True) as bus:
        yield lambda: bus.send_many("orders", orders, key=lambda order: order.id)


@asynccontextmanager
async def transaction(url: str) -> AsyncGenerator[Operation]:
    from eventbus import EventBus

    async def send() -> None:
        async with bus.transaction("billing") as tx:
            await tx.send("orders", Order(1, "lamp"))

    async with EventBus(url, auto_create_topics=True) as bus:
        yield send


class _Peer(asyncio.Transport):
    """The socket of a peer: it passes requests to the server's connection, and counts nothing of its own."""

    def __init__(self, connection: Any) -> None:
        super().__init__()
        self._connection = connection
        self._answered: asyncio.Future[None] | None = None
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"")

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._connection.connection_lost(None)

    async def ask(self, frame: bytes) -> None:
        self._answered = asyncio.get_running_loop().create_future()
        self._connection.get_buffer(-1)[: len(frame)] = frame
        self._connection.buffer_updated(len(frame))
        await self._answered


@asynccontextmanager
async def wire(url: str, kind: str) -> AsyncGenerator[Operation]:
    from eventbus.protocol import API_KEYS, messages, request_header, writer
    from eventbus.records import BatchBuilder
    from eventbus.server.connection import Connection
    from eventbus.testing import KafkaServer

    m = messages
    builder = BatchBuilder()
    builder.append(b"key", b"v" * 100, (), 1)
    partition = m.ProduceRequest.PartitionProduceData(index=0, records=builder.build())
    topic = m.ProduceRequest.TopicProduceData(name="orders", partition_data=[partition])
    produce = m.ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic])
    begin = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    fetch = m.FetchRequest(
        max_wait_ms=0, max_bytes=1_000, topics=[m.FetchRequest.FetchTopic(topic="orders", partitions=[begin])]
    )

    def frame(name: str, version: int, body: Any) -> bytes:
        key = next(key for key, api in API_KEYS.items() if api.name == name)
        data = request_header(key, version, 1, "peer") + b"".join(writer(f"{name}Request", version)(body))
        return len(data).to_bytes(4, "big") + data

    async with KafkaServer(url) as server:
        server.node.engine.partition_count("orders")
        peer = _Peer(Connection(server.node, server.node.listeners[0]))
        await peer.ask(frame("Produce", 9, produce))
        data = frame("Produce", 9, produce) if kind == "Produce" else frame("Fetch", 11, fetch)
        yield lambda: peer.ask(data)


PATHS: dict[str, tuple[Callable[[str], AbstractAsyncContextManager[Operation]], Counts]] = {
    "publish": (publish, Counts(103, 3.5, 1.2, 110)),
    "publish and handle": (publish_and_handle, Counts(270, 4.5, 1.4, 110)),
    "failing record": (partial(publish_and_handle, fails=True), Counts(1_200, 8.5, 3.2, 2_600)),
    "send_many of 1,000": (send_many, Counts(6_500, 5.5, 1.4, 41_000)),
    "transaction": (transaction, Counts(700, 9, 3.3, 1_150)),
    "produce request": (partial(wire, kind="Produce"), Counts(170, 3.5, 1.2, 190)),
    "fetch request": (partial(wire, kind="Fetch"), Counts(80, 0.5, 0, 0)),
}
"""Each path with the bounds of its counts, a little above the counts themselves, because a timer may fire in a window.
All of them use a log in a directory with default settings."""


# -- counting ----------------------------------------------------------------------------------------------------------


def _written_bytes() -> int:
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


async def _window(operation: Operation, functions: Counter[CodeType]) -> Counts:
    """Count `EACH` repetitions, and return the means."""
    flushes = 0

    def counted(fd: int) -> None:
        nonlocal flushes
        flushes += 1
        os.fdatasync(fd)

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            functions[frame.f_code] += 1

    real, written_bytes = storage._fdatasync, _written_bytes()
    storage._fdatasync = counted
    sys.setprofile(count)
    try:
        for _ in range(EACH):
            await operation()
    finally:
        sys.setprofile(None)
        storage._fdatasync = real
    totals = (functions.total(), functions[_LOOP_TURN], flushes, _written_bytes() - written_bytes)
    return Counts(*[total / EACH for total in totals])


async def count(name: str, folder: Path) -> tuple[Counts, Counter[CodeType]]:
    """Return the counts of one operation of a path, and the calls of each function in `EACH` operations."""
    async with PATHS[name][0](f"file://{folder}") as operation:
        for _ in range(WARM_UP):
            await operation()
        windows: list[tuple[Counts, Counter[CodeType]]] = []
        for _ in range(WINDOWS):
            functions: Counter[CodeType] = Counter()
            windows.append((await _window(operation, functions), functions))
    return min(windows, key=lambda window: window[0])


def modules_after(program: str) -> int:
    """Return the number of modules that an interpreter has loaded after a program."""
    program = f"import contextlib, sys\nwith contextlib.suppress(SystemExit): {program}\nprint(len(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def system_calls(name: str) -> dict[str, float]:
    """Return the system calls of one operation in all threads: the difference of two programs under ``strace``."""

    def calls_of(repetitions: int) -> Counter[str]:
        with tempfile.NamedTemporaryFile("r") as report:
            command = ["strace", "-f", "-c", "-U", "calls,name", "-o", report.name, sys.executable, __file__]
            subprocess.run([*command, "--repeat", str(repetitions), "--only", name], check=True)
            rows = [line.split() for line in report.read().splitlines()]
        return Counter({row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdecimal()})

    few, many = calls_of(100), calls_of(300)
    means = {call: (many[call] - few[call]) / 200 for call in many if call != "total"}
    return {call: mean for call, mean in sorted(means.items(), key=lambda item: -item[1]) if mean >= 0.05}


# -- the command -------------------------------------------------------------------------------------------------------


async def repeat(name: str, folder: Path, repetitions: int) -> None:
    async with PATHS[name][0](f"file://{folder}") as operation:
        for _ in range(repetitions):
            await operation()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PATHS, help="count this path only")
    parser.add_argument("--functions", action="store_true", help="list the calls of each function")
    parser.add_argument("--strace", action="store_true", help="list the system calls of all threads")
    parser.add_argument("--repeat", type=int, help="run the path so often, and count nothing")
    options = parser.parse_args()
    logging.disable()  # a record that fails logs a traceback
    if not options.repeat:
        print(f"{'path':24} {' '.join(f'{field:>14}' for field in Counts._fields)}")
    for name in [options.only] if options.only else PATHS:
        with tempfile.TemporaryDirectory() as folder:
            if options.repeat:
                asyncio.run(repeat(name, Path(folder), options.repeat))
                continue
            counts, functions = asyncio.run(count(name, Path(folder)))
        print(f"{name:24} {' '.join(f'{value:14,.1f}' for value in counts)}")
        for code, calls in functions.most_common() if options.functions else ():
            print(f"  {calls / EACH:8.2f}  {code.co_qualname}  {code.co_filename}:{code.co_firstlineno}")
        if options.strace:
            print("   ", ", ".join(f"{call} {mean:.1f}" for call, mean in system_calls(name).items()))
    for name, (program, _) in MODULES.items() if not options.only else ():
        print(f"{name:24} {modules_after(program):14,} modules")


if __name__ == "__main__":
    main()
