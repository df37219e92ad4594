"""Exactly once: transfers between two accounts, made by a service that is killed in the middle of one.

The service is a separate process, so that the kill is real: the service has taken the money from one account, and
not yet put it on the other account. A log in memory ends with its process: there the service is cancelled instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from demo.places import Places, delete_topics
from eventbus import EventBus, IsolationLevel, Transaction
from eventbus.cli.progress import Bars
from eventbus.errors import EventBusError

COUNT = 3_000
KILLED_AT = 1_500
"""The transfer that is cut in two."""

_PARTITIONS = 3
_TOPICS = ("transfers", "checking", "savings")


class Transfer(msgspec.Struct, frozen=True):
    """Move ``amount`` from the checking account to the savings account."""

    number: int
    amount: int


class Entry(msgspec.Struct, frozen=True):
    """A line of an account; the amount is negative in ``checking``."""

    transfer: int
    amount: int


class Bank(msgspec.Struct, kw_only=True):
    """The accounts after the kill and the restart."""

    how: str
    """How the service ended: "killed" or "cancelled"."""
    done_before: int
    """Transfers that were complete then."""
    debits: int
    credits: int
    cut_off: int
    """Records of the transactions that were cut off: they are in the log, and no reader sees them."""
    problems: list[str]
    seconds: float


def build_bank(
    url: str, prefix: str, between: Callable[[Transfer], Awaitable[None]], *, drain_timeout_ms: int = 30_000
) -> EventBus:
    """The service: what the handler sends, and that it has handled the transfer, is one transaction."""
    # What a dead service has left open holds up readers for as long at most, whatever becomes of it.
    bus = EventBus(url, service="demo", transaction_timeout_ms=10_000, drain_timeout_ms=drain_timeout_ms)
    for topic in _TOPICS:
        bus.topic(f"{prefix}{topic}", partitions=_PARTITIONS)

    @bus.consumer(f"{prefix}transfers", group=f"{prefix}bank", exactly_once=True, transaction_records=100)
    async def move(transfer: Transfer, tx: Transaction) -> None:
        tx.send_nowait(f"{prefix}checking", Entry(transfer.number, -transfer.amount), key=transfer.number)
        await between(transfer)
        tx.send_nowait(f"{prefix}savings", Entry(transfer.number, transfer.amount), key=transfer.number)

    del move  # the bus has it
    return bus


async def run_bank(places: Places, bars: Bars) -> Bank:
    """Publish transfers, cut a service off as it carries them out, start another one, and read the accounts."""
    started, url, prefix = time.monotonic(), places.url, places.prefix
    bar = bars.bar("transfers, exactly once", COUNT)
    async with EventBus(url) as bus:
        await delete_topics(bus, *(f"{prefix}{topic}" for topic in _TOPICS))
        await bus.admin.create_topic(f"{prefix}transfers", _PARTITIONS)
        transfers = (Transfer(number, 1 + number % 97) for number in range(COUNT))
        await bus.send_many(f"{prefix}transfers", transfers, key=lambda transfer: transfer.number)
    if places.is_in_memory:
        is_there = anyio.Event()
        async with _stuck_half_way(url, prefix, is_there.set, drain_timeout_ms=0):
            await is_there.wait()
    else:
        await anyio.to_thread.run_sync(_kill_in_the_middle, url, prefix)
    async with EventBus(url) as bus:
        await bus.admin.remove_group_members(f"{prefix}bank")  # otherwise its session lasts a while, on a Kafka
        done_before = len(await _entries(bus, f"{prefix}savings"))
    bar.update(done_before)

    async def nothing(transfer: Transfer) -> None:
        """Let the service finish every transfer."""

    async with build_bank(url, prefix, nothing) as bus:
        await bus.drain()
        debits, credits = await _entries(bus, f"{prefix}checking"), await _entries(bus, f"{prefix}savings")
        written = 0
        for topic in ("checking", "savings"):
            written += len(await _entries(bus, f"{prefix}{topic}", IsolationLevel.READ_UNCOMMITTED))
    bar.update(COUNT)
    return Bank(
        how="cancelled" if places.is_in_memory else "killed",
        done_before=done_before,
        debits=len(debits),
        credits=len(credits),
        cut_off=written - len(debits) - len(credits),
        problems=differences(debits, credits),
        seconds=time.monotonic() - started,
    )


def _kill_in_the_middle(url: str, prefix: str) -> None:
    """Start the service, and kill it once it has sent one half of a transfer."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).parent), "bank", prefix],
        env={**os.environ, "EVENTBUS_URL": url},  # it may hold a password, and everybody sees arguments
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as service:
        assert service.stdout is not None and service.stderr is not None
        try:
            is_there = service.stdout.readline()
        finally:
            service.kill()
        if not is_there:
            last = service.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
            raise EventBusError(f"The demo's bank did not come as far as transfer {KILLED_AT}. {' '.join(last)}")


def _stuck_half_way(url: str, prefix: str, then: Callable[[], object], *, drain_timeout_ms: int = 30_000) -> EventBus:
    """Build the service that is cut off: it calls ``then`` when half of a transfer is stored, and then waits."""

    async def between(transfer: Transfer) -> None:
        if transfer.number == KILLED_AT:
            await bus.flush()
            then()
            await anyio.sleep_forever()

    bus = build_bank(url, prefix, between, drain_timeout_ms=drain_timeout_ms)
    return bus


async def serve_until_killed(url: str, prefix: str) -> None:
    await _stuck_half_way(url, prefix, lambda: print("half", flush=True)).run()


async def _entries(bus: EventBus, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> list[Entry]:
    async with bus.new_consumer(topic, value=Entry, isolation_level=isolation) as reader:
        return [record.value async for record in reader.until_end() if record.value is not None]


def differences(debits: list[Entry], credits: list[Entry]) -> list[str]:
    """Return what is wrong: every transfer must be in each account once, with the same amount."""
    problems: list[str] = []
    for name, entries, sign in (("debits", debits, -1), ("credits", credits, 1)):
        expected = [(number, sign * (1 + number % 97)) for number in range(COUNT)]
        found = sorted((entry.transfer, entry.amount) for entry in entries)
        if found != expected:
            lost, more = len({*expected} - {*found}), len(found) - len({*found})
            problems.append(f"bank: {len(found):,} {name}, {lost:,} of the transfers missing, {more:,} there twice")
    total = sum(entry.amount for entry in (*debits, *credits))
    return [*problems, f"bank: the accounts together hold {total}, not 0"] if total else problems
