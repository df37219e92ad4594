"""SIGTERM and SIGINT, in real processes: the first drains, the second stops at once, the third kills.

Nothing here goes by time: the process says on its standard output where it is, and its handler goes on when it reads a
line from its standard input.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import EventBus, TopicPartition
from tests.tiers import quick
from tests.warm import commands as warm

pytestmark = [pytest.mark.system, pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")]

SERVICE = """
import logging, sys, threading, time
import anyio
from eventbus import EventBus

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
bus = EventBus({url!r}, slow_loop_ms=None, {options})
bus.topic("t")


def say(text):
    sys.stdout.write(text + chr(10))  # in one piece: other threads write too
    sys.stdout.flush()

async def main():
    async with bus:
        await bus.run()
    say("closed")


{handler}

if __name__ == "__main__":
    anyio.run(main, backend={backend!r})
"""

WAITS = """
@bus.consumer("t", group="g")
async def handle(text: str) -> None:
    say("at work " + text)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    say("finished " + text)
"""

SLEEPS = """
@bus.consumer("t", group="g")
async def handle(text: str) -> None:
    say("at work " + text)
    await anyio.sleep_forever()
"""

PLAIN = """
@bus.consumer("t", group="g")
def handle(text: str) -> None:
    say("at work " + text)
    sys.stdin.readline()
    say("finished " + text)
"""

BLOCKS = """
import eventbus.client.running.signals
eventbus.client.running.signals._PATIENCE_SECONDS = 0

@bus.consumer("t", group="g")
async def handle(text: str) -> None:
    say("at work " + text)
    threading.Event().wait()
"""


class Service:
    """A process, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if text in line:
                return
        raise AssertionError(f"it ended without saying {text!r}: {self.said}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait until the process ends without further signals, and return its exit code."""
        assert self.process.stdout is not None
        self.said += [line.rstrip() for line in self.process.stdout]
        return self.process.wait()


@contextmanager
def started(
    directory: Path, handler: str, *, backend: str = "asyncio", command: bool = False, **options: Any
) -> Generator[Service]:
    """Start the service with two records in topic t, and wait until its handler is called with the first."""
    url = f"file://{directory}/log"

    async def prepare() -> None:
        async with EventBus(url) as bus:
            await bus.admin.create_topic("t")
            await bus.send("t", "one")
            await bus.send("t", "two")

    anyio.run(prepare)
    texts = ", ".join(f"{name}={value!r}" for name, value in options.items())
    (directory / "app.py").write_text(SERVICE.format(url=url, options=texts, handler=handler, backend=backend))
    arguments = ["-m", "eventbus", "run", "app:bus"] if command else ["app.py"]
    process = subprocess.Popen(
        [warm.python(), *arguments],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        service = Service(process)
        try:
            # Both come, in either order.
            running = "Ctrl-C stops it" if command else "running until"
            service.wait_for("at work one")
            if not any(running in line for line in service.said):
                service.wait_for(running)
            yield service
        finally:
            process.kill()


def committed(directory: Path) -> int:
    async def ask() -> int:
        async with EventBus(f"file://{directory}/log") as bus:
            offsets = await bus.admin.group_offsets("g")
            known = offsets.get(TopicPartition("t", 0))
            return 0 if known is None else known.offset

    return anyio.run(ask)


@pytest.mark.parametrize(
    ("number", "backend"),
    quick(itertools.product([signal.SIGTERM, signal.SIGINT], ["asyncio", "trio"]), [(signal.SIGTERM, "asyncio")]),
)
def test_the_first_signal_lets_the_record_at_work_finish(tmp_path: Path, backend: str, number: signal.Signals) -> None:
    with started(tmp_path, WAITS, backend=backend) as service:
        service.signal(number)
        service.wait_for(f"{number.name}: stopping; records in flight have up to 30 s to finish (drain_timeout_ms)")
        service.go_on()
        assert service.end() == 0, service.said
    assert "finished one" in service.said and service.said[-1] == "closed"
    assert not any("at work two" in line for line in service.said)  # it took no further one
    assert committed(tmp_path) == 1


def test_what_takes_longer_than_the_deadline_is_cancelled_and_not_committed(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS, drain_timeout_ms=1) as service:
        service.signal(signal.SIGTERM)
        assert service.end() == 0, service.said
    assert any(line.startswith("WARNING") and "t-0 offset 0 in time" in line for line in service.said), service.said
    assert service.said[-1] == "closed"
    assert committed(tmp_path) == 0


@pytest.mark.parametrize("backend", quick(["asyncio", "trio"], ["trio"]))
def test_the_second_signal_stops_at_once(tmp_path: Path, backend: str) -> None:
    with started(tmp_path, SLEEPS, backend=backend) as service:
        service.signal(signal.SIGTERM)
        service.wait_for("a second signal stops at once")
        service.signal(signal.SIGTERM)
        assert service.end() == 1, service.said
    assert any("SIGTERM again: stopping at once" in line for line in service.said)
    assert any("StoppedBySignal: SIGTERM came twice" in line for line in service.said), service.said
    assert committed(tmp_path) == 0


def test_the_third_signal_kills_even_a_plain_function(tmp_path: Path) -> None:
    with started(tmp_path, PLAIN) as service:
        for said in ("a second signal stops at once", "SIGTERM again: stopping at once"):
            service.signal(signal.SIGTERM)
            service.wait_for(said)
        service.signal(signal.SIGTERM)
        assert service.end() == -signal.SIGTERM
    assert committed(tmp_path) == 0


def test_a_plain_function_that_ends_after_the_second_signal_ends_the_process(tmp_path: Path) -> None:
    with started(tmp_path, PLAIN) as service:
        for said in ("a second signal stops at once", "SIGINT again: stopping at once"):
            service.signal(signal.SIGINT)
            service.wait_for(said)
        service.go_on()
        assert service.end() == 1, service.said
    assert "finished one" in service.said, "\n".join(service.said)


def test_the_command_ends_though_a_plain_function_hangs(tmp_path: Path) -> None:
    with started(tmp_path, PLAIN, command=True, drain_timeout_ms=1) as service:
        service.signal(signal.SIGTERM)
        assert service.end() == 75, service.said
    assert any("t-0 offset 0 in time: abandoned in its thread" in line for line in service.said), service.said
    assert any(line.startswith("stopped; records at work were cancelled") for line in service.said), service.said
    assert committed(tmp_path) == 0


def test_a_program_on_trio_ends_though_a_plain_function_hangs(tmp_path: Path) -> None:
    with started(tmp_path, PLAIN, backend="trio", drain_timeout_ms=1) as service:
        service.signal(signal.SIGTERM)
        assert service.end() == 0, service.said
    assert service.said[-1] == "closed" and committed(tmp_path) == 0


@pytest.mark.parametrize("backend", quick(["asyncio", "trio"], 1))
def test_a_second_signal_interrupts_code_that_blocks_the_loop(tmp_path: Path, backend: str) -> None:
    with started(tmp_path, BLOCKS, backend=backend) as service:
        service.signal(signal.SIGINT)  # two different signals: two equal ones that are both pending count as one
        service.signal(signal.SIGTERM)
        assert service.end() != 0, service.said
    assert committed(tmp_path) == 0


def test_the_command_drains_too(tmp_path: Path) -> None:
    with started(tmp_path, WAITS, command=True) as service:
        service.signal(signal.SIGTERM)
        service.wait_for("SIGTERM: stopping; records in flight have up to 30 s")
        service.go_on()
        assert service.end() == 0, service.said
    assert "stopped" in service.said and "finished one" in service.said
    assert committed(tmp_path) == 1


def test_the_command_stops_at_once_with_the_shells_exit_code(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPS, command=True) as service:
        service.signal(signal.SIGINT)
        service.wait_for("a second signal stops at once")
        service.signal(signal.SIGTERM)
        assert service.end() == 128 + signal.SIGTERM, service.said
    assert "SIGTERM came twice" in service.said[-1] or "stopped at once" in service.said[-1]
    assert committed(tmp_path) == 0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_outside_of_the_main_thread_stop_ends_it(backend: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    failures: list[BaseException] = []

    def run() -> None:
        bus = EventBus("memory://")
        bus.topic("t")

        @bus.consumer("t", group="g")
        async def handle(text: str) -> None:
            bus.stop()

        async def main() -> None:
            async with bus:
                await bus.send("t", "x")
                await bus.run()

        try:
            anyio.run(main, backend=backend)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and failures == []
    assert signal.getsignal(signal.SIGTERM) is before


async def test_handlers_of_signals_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    bus = EventBus("memory://")
    async with bus:
        bus.stop()
        await bus.run()
        assert signal.getsignal(signal.SIGTERM) is not before[1]  # also while it closes
    after = signal.getsignal(signal.SIGTERM)
    assert after == before[1]


TWO = """
other = EventBus("memory://", slow_loop_ms=None)
other.topic("t")

@bus.consumer("t", group="g")
async def handle(text: str) -> None:
    if text == "one":
        say("at work one")
        await anyio.to_thread.run_sync(sys.stdin.readline)
        say("finished one")


async def main():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.run)
        async with bus:
            await bus.run()
    say("closed")
"""


@pytest.mark.parametrize("backend", quick(["asyncio", "trio"], 1))
def test_all_buses_of_a_process_hear_a_signal(tmp_path: Path, backend: str) -> None:
    with started(tmp_path, TWO, backend=backend) as service:
        if sum("running until" in line for line in service.said) < 2:
            service.wait_for("running until")
        service.signal(signal.SIGTERM)
        service.wait_for("SIGTERM: stopping")
        service.wait_for("SIGTERM: stopping")
        service.go_on()
        assert service.end() == 0, service.said
    assert service.said[-1] == "closed"
