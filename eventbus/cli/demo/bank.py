"""Exactly once: transfers between two accounts, made by a service that is killed in the middle of one.

The service is a process of its own (``python -m eventbus.cli.demo.bank URL``), so that the kill is a real one: it has
taken the money from one account, and not yet put it on the other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec

from eventbus import EventBus, IsolationLevel, Transaction
from eventbus.cli.demo.display import Display
from eventbus.cli.shell import run_async
from eventbus.errors import ConfigError, EventBusError

TRANSFERS, CHECKING, SAVINGS = "transfers", "checking", "savings"
BANK = "bank"
COUNT = 3_000
KILLED_AT = 1_500
"""The transfer that is cut in two."""

_PARTITIONS = 3


class Transfer(msgspec.Struct, frozen=True):
    """Move ``amount`` from the checking account to the savings account."""

    number: int
    amount: int


class Entry(msgspec.Struct, frozen=True):
    """A line of an account; the amount is negative in ``checking``."""

    transfer: int
    amount: int


class Bank(msgspec.Struct, kw_only=True):
    """What the accounts say after the kill and the restart."""

    transfers: int
    killed_at: int
    done_before: int
    """Transfers that were complete when the service was killed."""
    debits: int
    credits: int
    balance: int
    """Of both accounts together: nothing may come from nowhere, nor go there."""
    cut_off: int
    """Records of the transactions that were cut off: in the log, and never read."""
    problems: list[str]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.transfers:,} transfers between two topics; the service was killed in the middle of number "
            f"{self.killed_at:,}.\n"
            f"           After its restart: {self.debits:,} debits, {self.credits:,} credits, together {self.balance}. "
            f"The {self.cut_off:,} record(s) of the transactions\n"
            "           that were cut off are in the log, and no reader sees them"
        )


def build_bank(url: str, between: Callable[[Transfer], Awaitable[None]]) -> EventBus:
    """The service: what the handler sends, and that it has handled the transfer, is one transaction."""
    bus = EventBus(url, client_id="demo")
    for topic in (TRANSFERS, CHECKING, SAVINGS):
        bus.topic(topic, partitions=_PARTITIONS)

    @bus.consumer(TRANSFERS, group=BANK, exactly_once=True, transaction_records=100)
    async def move(transfer: Transfer, tx: Transaction) -> None:
        tx.send_nowait(CHECKING, Entry(transfer.number, -transfer.amount), key=transfer.number)
        await between(transfer)
        tx.send_nowait(SAVINGS, Entry(transfer.number, transfer.amount), key=transfer.number)

    del move  # the bus has it
    return bus


def run_bank(directory: Path, url: str, display: Display) -> Bank:
    """The whole story, in a log of its own that is made anew each time.

    Raises:
        LogLocked: another process works there.
        ConfigError: the directory is none of ours.
    """
    remove_log(directory)
    started = time.monotonic()
    bar = display.bar("transfers, exactly once", COUNT)
    run_async(lambda: _publish(url))
    _kill_in_the_middle(url)
    done_before = 0
    results: list[Bank] = []

    async def go_on() -> None:
        nonlocal done_before
        async with EventBus(url) as bus:
            done_before = len(await _entries(bus, SAVINGS))
        bar.update(done_before)
        async with build_bank(url, _nothing) as bus:
            await bus.drain()
            results.append(await _audit(bus, done_before, time.monotonic() - started))

    run_async(go_on)
    bar.update(COUNT)
    return results[0]


async def _publish(url: str) -> None:
    async with EventBus(url) as bus:
        await bus.admin.create_topic(TRANSFERS, _PARTITIONS)
        transfers = (Transfer(number, 1 + number % 97) for number in range(COUNT))
        await bus.send_many(TRANSFERS, transfers, key=lambda transfer: transfer.number)


def _kill_in_the_middle(url: str) -> None:
    """Start the service, and kill it once it has sent one half of a transfer."""
    command = [sys.executable, "-m", "eventbus.cli.demo.bank", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as service:
        assert service.stdout is not None and service.stderr is not None
        try:
            is_there = service.stdout.readline()
        finally:
            service.kill()
        if not is_there:
            last = service.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
            raise EventBusError(f"the demo's bank did not come as far as transfer {KILLED_AT}: {' '.join(last)}")


async def _serve_until_killed(url: str) -> None:
    """What the process does that is going to be killed."""

    async def between(transfer: Transfer) -> None:
        if transfer.number == KILLED_AT:
            await bus.flush()  # one half of the transfer is on disk ...
            print("half", flush=True)
            await anyio.sleep_forever()  # ... and the other half is never sent

    bus = build_bank(url, between)
    async with bus:
        await bus.run()


async def _nothing(transfer: Transfer) -> None:
    """The service as it is meant to be."""


async def _entries(bus: EventBus, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> list[Entry]:
    found: list[Entry] = []
    async with bus.new_consumer(topic, value=Entry, isolation=isolation) as reader:
        while records := await reader.poll(timeout_ms=0, max_records=10_000):
            found += [record.value for record in records]
    return found


async def _audit(bus: EventBus, done_before: int, seconds: float) -> Bank:
    debits, credits = await _entries(bus, CHECKING), await _entries(bus, SAVINGS)
    written = 0
    for topic in (CHECKING, SAVINGS):
        written += len(await _entries(bus, topic, IsolationLevel.READ_UNCOMMITTED))
    bank = Bank(
        transfers=COUNT,
        killed_at=KILLED_AT,
        done_before=done_before,
        debits=len(debits),
        credits=len(credits),
        balance=sum(entry.amount for entry in (*debits, *credits)),
        cut_off=written - len(debits) - len(credits),
        problems=[],
        seconds=seconds,
    )
    bank.problems = differences(debits, credits)
    return bank


def differences(debits: list[Entry], credits: list[Entry]) -> list[str]:
    """What is not as it should be: every transfer once in each account, and both of the same amount."""
    problems: list[str] = []
    for name, entries, sign in (("debits", debits, -1), ("credits", credits, 1)):
        expected = [(number, sign * (1 + number % 97)) for number in range(COUNT)]
        found = sorted((entry.transfer, entry.amount) for entry in entries)
        if found != expected:
            lost, more = len(set(expected) - set(found)), len(found) - len(set(found))
            problems.append(f"bank: {len(found):,} {name}, {lost:,} of the transfers missing, {more:,} there twice")
    total = sum(entry.amount for entry in (*debits, *credits))
    if total:
        problems.append(f"bank: the accounts together hold {total}, not 0")
    return problems


def remove_log(directory: Path) -> None:
    """Delete the log of an earlier run, and nothing else.

    Raises:
        LogLocked: another process works there.
        ConfigError: the directory is none of ours.
    """
    from eventbus.log.storage import FileStorage

    if not directory.exists():
        return
    if not (directory / "meta.properties").is_file() and any(directory.iterdir()):
        raise ConfigError(f"{directory} does not look like a log (no meta.properties): the demo leaves it alone")
    storage = FileStorage(str(directory))
    storage.lock()
    try:
        shutil.rmtree(directory)
    finally:
        storage.unlock()


if __name__ == "__main__":
    anyio.run(_serve_until_killed, sys.argv[1])
