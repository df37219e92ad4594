"""Use everything of a running bus in forked children, one child for each use.

Run as a program: ``python -m tests.client.forked_children URL``. It prints one JSON object: for each use what it raised
or returned, or the signal that ended a child that hung.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from eventbus import EventBus
from eventbus.client import blocking

_PATIENCE_SECONDS = 20
"""A child that hangs is ended by SIGALRM."""


def in_child(use: Callable[[], object]) -> str:
    """Fork, call ``use`` in the child, and return its outcome as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_PATIENCE_SECONDS)
        try:
            outcome = f"returned {use()!r}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(writing, outcome.encode()[:2_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        outcome = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return outcome if code == 0 else f"ended with {code}"


def exits(code: int) -> int:
    """Fork a child that leaves all ``with`` blocks and runs what is registered with atexit. Return its exit code."""
    child = os.fork()
    if child == 0:
        signal.alarm(_PATIENCE_SECONDS)
        sys.exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def start(bus: EventBus) -> str:
    async with bus:
        return "started"


def enter(bus: EventBus) -> str:
    with bus.blocking():
        return "started"


def in_parent_threads(url: str) -> dict[str, Any]:
    """Use a bus whose event loop runs in another thread than the one that forks."""
    bus, other, unstarted = EventBus(url), EventBus(url), EventBus("memory://")
    bus.topic("orders", partitions=1)
    table = bus.table("prices", key=str, value=str)
    outcomes: dict[str, Any] = {"process": os.getpid()}

    with bus.blocking() as b:
        b.send("orders", "from the parent")
        producer, transaction = b.new_producer(), b.transaction("importer")
        consumer = b.new_consumer("orders", group="audit", start="earliest")
        b.send("orders", "second")
        consumer.__enter__()
        consumer.poll(2_000, 1)
        pending = b.submit(asyncio.sleep, 600)
        refused: dict[str, Callable[[], object]] = {
            "blocking send": lambda: b.send("orders", "x"),
            "blocking send_nowait": lambda: b.send_nowait("orders", "x").result(),
            "blocking send_many": lambda: b.send_many("orders", ["x"]),
            "blocking request": lambda: b.request("orders", "x"),
            "blocking flush": b.flush,
            "blocking drain": b.drain,
            "blocking health": b.health,
            "blocking metrics": b.metrics,
            "blocking submit": lambda: b.submit(asyncio.sleep, 0),
            "blocking admin": b.admin.list_topics,
            "blocking transaction": transaction.__enter__,
            "blocking new_producer": b.new_producer,
            "blocking new_consumer": lambda: b.new_consumer("orders"),
            "blocking producer": lambda: producer.send("orders", "x"),
            "blocking consumer poll": lambda: consumer.poll(0),
            "blocking consumer next": lambda: next(consumer),
            "future of the parent": pending.result,
            "enter blocking": lambda: enter(bus),
            "start": lambda: asyncio.run(start(bus)),
            "send": lambda: asyncio.run(bus.send("orders", "x")),
            "send_nowait": lambda: bus.send_nowait("orders", "x"),
            "admin": lambda: asyncio.run(bus.admin.list_topics()),
            "run": lambda: asyncio.run(bus.run()),
            "drain": lambda: asyncio.run(bus.drain()),
            "health": lambda: asyncio.run(bus.health()),
            "flush": lambda: asyncio.run(bus.flush()),
            "close": lambda: asyncio.run(bus.close()),
            "stop": bus.stop,
            "metrics": bus.metrics,
            "new_producer": bus.new_producer,
            "new_consumer": lambda: bus.new_consumer("orders"),
            "transaction": lambda: bus.transaction("importer"),
            "table": lambda: len(table),
        }
        outcomes["refused"] = {name: in_child(use) for name, use in refused.items()}
        outcomes["left"] = {
            "blocking": in_child(lambda: b.__exit__(None, None, None)),
            "producer": in_child(lambda: producer.__exit__(None, None, None)),
            "consumer": in_child(lambda: consumer.__exit__(None, None, None)),
        }
        outcomes["a new bus of the log"] = in_child(lambda: asyncio.run(start(EventBus(url))))
        outcomes["a stopped bus of the log"] = in_child(lambda: enter(other))
        outcomes["a stopped bus, while another thread starts one"] = while_locked(
            lambda: in_child(lambda: enter(unstarted))
        )
        outcomes["exit in the block"] = exits(7)
        process = multiprocessing.get_context("fork").Process(target=refuse_and_exit, args=(bus,))
        process.start()
        process.join()
        outcomes["multiprocessing"] = process.exitcode
        pending.cancel()
        consumer.close()
        outcomes["offset of the parent's third record"] = b.send("orders", "third").offset
    outcomes["exit after the block"] = exits(8)
    return outcomes


def while_locked(call: Callable[[], str]) -> str:
    """Call it while another thread is in the middle of starting a bus."""
    is_held, is_done = threading.Event(), threading.Event()

    def hold() -> None:
        with blocking._starting.lock:  # pyright: ignore[reportPrivateUsage]
            is_held.set()
            is_done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        return call()
    finally:
        is_done.set()
        thread.join()


def refuse_and_exit(bus: EventBus) -> None:
    signal.alarm(_PATIENCE_SECONDS)
    try:
        enter(bus)
    except Exception as error:
        sys.exit(0 if "forked child" in str(error) else 1)
    sys.exit(2)


async def in_event_loop(url: str) -> dict[str, Any]:
    """Use a bus in children that its event loop's thread forks."""
    bus = EventBus(url)
    bus.topic("orders", partitions=1)
    outcomes: dict[str, Any] = {}
    async with bus, bus.new_consumer("orders", group="audit 2") as consumer:
        await bus.send("orders", "from the parent")

        async def sends() -> None:
            await bus.send("orders", "x")

        async def leaves() -> None:
            async with bus.new_producer() as own:
                await own.send("orders", "x")

        async def polls() -> None:
            await consumer.poll(0)

        for use in (sends, leaves, polls):
            outcomes[use.__name__] = in_child(lambda use=use: use().send(None))  # without its loop: it must not wait
        outcomes["send_nowait"] = in_child(lambda: bus.send_nowait("orders", "x"))
        listening = asyncio.ensure_future(bus.run())
        await asyncio.sleep(0.01)
        outcomes["SIGTERM"] = in_child(lambda: os.kill(os.getpid(), signal.SIGTERM))
        bus.stop()
        await listening
        await bus.send("orders", "the parent goes on")
    return outcomes


if __name__ == "__main__":
    url = sys.argv[1]
    print(json.dumps({**in_parent_threads(url), "loop": asyncio.run(in_event_loop(url))}))
