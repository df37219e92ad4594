"""Scheduled records: how late they come with many pending, and how fast a backlog that falls due at once is delivered.

python benchmarks/scheduling.py [PENDING]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time

import anyio

from eventbus import EventBus
from harness import Figure, Numbers, case

_SENDERS = 200
_PROBES = 2_000

SCHEDULING_FIGURES = [
    Figure("D1", "scheduled records: put by, memory", "scheduled pending:memory put by", None, None, 5_000),
    Figure("D2", "scheduled records: put by, file", "scheduled pending:file put by", None, None, 3_000),
    Figure("D3", "lateness p99, memory", "scheduled pending:memory late", None, None, 50, True, "ms"),
    Figure("D4", "lateness p99, file", "scheduled pending:file late", None, None, 200, True, "ms"),
    Figure("D5", "due at once, memory", "scheduled backlog:memory", None, None, 10_000),
    Figure("D6", "due at once, file", "scheduled backlog:file", None, None, 5_000),
]


async def put_by(bus: EventBus, topic: str, count: int, within_ms: int, after_ms: int) -> float:
    """Records of 100 bytes, by many tasks; how many a second."""
    began, chosen = time.perf_counter(), random.Random(1)

    async def put(share: int) -> None:
        for _ in range(share):
            await bus.send(topic, b"x" * 100, deliver_at=after_ms + chosen.randrange(within_ms))

    async with anyio.create_task_group() as tasks:
        for _ in range(_SENDERS):
            tasks.start_soon(put, count // _SENDERS)
    return count / (time.perf_counter() - began)


async def lateness(url: str, pending: int) -> tuple[float, float]:
    """Records put by in a second, and the milliseconds by which one in a hundred came later."""
    late: list[float] = []
    all_came = anyio.Event()
    bus = EventBus(url, service="bench")
    bus.topic("far")

    @bus.consumer("near", group="g")
    async def came(due_ms: int) -> None:
        late.append(time.time() * 1000 - due_ms)
        if len(late) == _PROBES:
            all_came.set()

    bus.topic("near")
    async with bus:
        rate = await put_by(bus, "far", pending, 86_400_000, bus.context.now_ms() + 86_400_000)
        await bus.drain()
        chosen = random.Random(2)
        for _ in range(_PROBES):
            due_ms = bus.context.now_ms() + 1_000 + chosen.randrange(20_000)
            await bus.send("near", due_ms, deliver_at=due_ms)
        await all_came.wait()
    late.sort()
    print(
        f"{url.partition(':')[0]:7} {pending:,} pending, put by {rate:,.0f}/s; late: p50 {late[_PROBES // 2]:.1f} ms, "
        f"p99 {late[_PROBES * 99 // 100]:.1f} ms, most {late[-1]:.1f} ms; earliest {late[0]:.1f} ms"
    )
    return rate, late[_PROBES * 99 // 100]


async def backlog(url: str, count: int) -> float:
    """Records a second."""
    bus = EventBus(url, service="bench")
    bus.topic("t")
    async with bus:
        due_ms = bus.context.now_ms() + 3_000 + count // 10
        await put_by(bus, "t", count, 1, due_ms)
        await anyio.sleep(max(0.0, (due_ms - bus.context.now_ms()) / 1000))
        began = time.perf_counter()
        await bus.drain()
        rate = count / (time.perf_counter() - began)
    print(f"{url.partition(':')[0]:7} {count:,} due at once: {rate:,.0f}/s")
    return rate


@case("scheduled pending", n=100_000, quick=2_000, rounds=1)
def scheduled_pending(n: int) -> Numbers:
    """How fast records are put by, and how late others come meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        memory, file = (anyio.run(lateness, url, n) for url in ("memory://", f"file://{folder}"))
    return {"memory put by": memory[0], "memory late": memory[1], "file put by": file[0], "file late": file[1]}


@case("scheduled backlog", n=20_000, quick=2_000, rounds=1)
def scheduled_backlog(n: int) -> Numbers:
    """How fast is delivered what falls due at once."""
    with tempfile.TemporaryDirectory() as folder:
        return {"memory": anyio.run(backlog, "memory://", n), "file": anyio.run(backlog, f"file://{folder}", n)}


async def main(pending: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for url in ("memory://", f"file://{folder}/pending"):
            await lateness(url, pending)
        for url in ("memory://", f"file://{folder}/backlog"):
            await backlog(url, 20_000)


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
