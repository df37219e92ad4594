"""Exactly once: transfers between two accounts, made by a service that is killed in the middle of a transfer.

The service is a separate process (``python -m eventbus.demo.bank``), so that the kill is real: it has taken the money
from one account, and not yet put it on the other. A log in memory ends with its process: there the service is cancelled
at that point instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Unpack

import anyio
import anyio.to_thread
import msgspec

from eventbus import EventBus, IsolationLevel, Transaction
from eventbus.cli.shell import run_async
from eventbus.client.keywords import BusOptions
from eventbus.demo.display import Display
from eventbus.demo.names import Names, Places
from eventbus.errors import ConfigError, EventBusError

COUNT = 3_000
KILLED_AT = 1_500
"""The transfer that is interrupted."""

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
    """The state of the accounts after the kill and the restart."""

    transfers: int
    killed_at: int
    how: str
    """How the service was ended: "killed" or "cancelled"."""
    done_before: int
    """Transfers that were complete when the service was killed."""
    debits: int
    credits: int
    balance: int
    """The sum of both accounts, which must be 0."""
    cut_off: int
    """Records of the interrupted transactions: in the log, and never read."""
    problems: list[str]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.transfers:,} transfers between two topics; the service was {self.how} in the middle of number "
            f"{self.killed_at:,}.\n"
            f"           After its restart: {self.debits:,} debits, {self.credits:,} credits, together {self.balance}. "
            f"The {self.cut_off:,} record(s) of the transactions\n"
            "           that were cut off are in the log, and no reader sees them"
        )


def build_bank(
    url: str, names: Names, between: Callable[[Transfer], Awaitable[None]], **config: Unpack[BusOptions]
) -> EventBus:
    """Build the service: the records that the handler sends, and the offset of the transfer, are one transaction."""
    # An open transaction of a dead service blocks readers for at most this long.
    options: BusOptions = {"service": "demo", "transaction_timeout_ms": 10_000, **config}
    bus = EventBus(url, **options)
    for topic in names.of_the_bank:
        bus.topic(topic, partitions=_PARTITIONS)

    @bus.consumer(names.transfers, group=names.bank, exactly_once=True, transaction_records=100)
    async def move(transfer: Transfer, tx: Transaction) -> None:
        tx.send_nowait(names.checking, Entry(transfer.number, -transfer.amount), key=transfer.number)
        await between(transfer)
        tx.send_nowait(names.savings, Entry(transfer.number, transfer.amount), key=transfer.number)

    del move  # the bus has it
    return bus


def run_bank(places: Places, display: Display) -> Bank:
    """Run the demo of transfers, in topics that are created again each time.

    Raises:
        LogLocked: another process uses the log of an earlier run.
        ConfigError: its directory does not belong to the demo.
    """
    if places.given is None:
        remove_log(places.bank)
    bar = display.bar("transfers, exactly once", COUNT)
    results: list[Bank] = []

    async def story() -> None:
        results.append(await _Story(places).run(bar.update))

    run_async(story)
    bar.update(COUNT)
    return results[0]


class _Story:
    """Publish transfers, kill the service while it executes them, let another continue, read the accounts."""

    def __init__(self, places: Places) -> None:
        self._url, self._names, self._places = places.bank_url, places.names, places

    async def run(self, on_progress: Callable[[int], None]) -> Bank:
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            if self._places.is_in_memory:
                await stack.enter_async_context(EventBus(self._url))  # the log exists as long as it is in use
            async with EventBus(self._url) as bus:
                await self._publish(bus)
            if self._places.is_in_memory:
                await self._cancel_in_the_middle()
            else:
                await anyio.to_thread.run_sync(self._kill_in_the_middle)
            async with EventBus(self._url) as bus:
                await bus.admin.remove_group_members(self._names.bank)  # otherwise its session lasts a while, on Kafka
                done_before = len(await _entries(bus, self._names.savings))
            on_progress(done_before)
            async with build_bank(self._url, self._names, _nothing) as bus:
                await bus.drain()
                return await self._audit(bus, done_before, started)

    async def _publish(self, bus: EventBus) -> None:
        names = self._names
        there = set(names.of_the_bank).intersection(await bus.admin.list_topics())
        if there:  # of an earlier run
            await bus.admin.delete_topics(sorted(there))
        await bus.admin.create_topic(names.transfers, _PARTITIONS)
        transfers = (Transfer(number, 1 + number % 97) for number in range(COUNT))
        await bus.send_many(names.transfers, transfers, key=lambda transfer: transfer.number)

    def _kill_in_the_middle(self) -> None:
        """Start the service, and kill it once it has sent the first half of a transfer."""
        command = [sys.executable, "-m", "eventbus.demo.bank", self._names.prefix]
        with subprocess.Popen(
            command,
            # It may contain a password, and arguments are visible to all users.
            env={**os.environ, "EVENTBUS_URL": self._url},
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
                raise EventBusError(f"the demo's bank did not come as far as transfer {KILLED_AT}: {' '.join(last)}")

    async def _cancel_in_the_middle(self) -> None:
        is_there = anyio.Event()
        async with _stuck_half_way(self._url, self._names, is_there.set, drain_timeout_ms=0):
            await is_there.wait()

    async def _audit(self, bus: EventBus, done_before: int, started: float) -> Bank:
        checking, savings = self._names.checking, self._names.savings
        debits, credits = await _entries(bus, checking), await _entries(bus, savings)
        written = 0
        for topic in (checking, savings):
            written += len(await _entries(bus, topic, IsolationLevel.READ_UNCOMMITTED))
        return Bank(
            transfers=COUNT,
            killed_at=KILLED_AT,
            how="cancelled" if self._places.is_in_memory else "killed",
            done_before=done_before,
            debits=len(debits),
            credits=len(credits),
            balance=sum(entry.amount for entry in (*debits, *credits)),
            cut_off=written - len(debits) - len(credits),
            problems=differences(debits, credits),
            seconds=time.monotonic() - started,
        )


def _stuck_half_way(url: str, names: Names, then: Callable[[], None], **config: Unpack[BusOptions]) -> EventBus:
    """Build the service that is interrupted: it calls ``then`` after the first half of a transfer, and stops."""

    async def between(transfer: Transfer) -> None:
        if transfer.number == KILLED_AT:
            await bus.flush()
            then()
            await anyio.sleep_forever()

    bus = build_bank(url, names, between, **config)
    return bus


async def _nothing(transfer: Transfer) -> None:
    """Do nothing between the halves: the normal service."""


async def _serve_until_killed(url: str, names: Names) -> None:
    """Run the service in the process that will be killed."""
    await _stuck_half_way(url, names, lambda: print("half", flush=True)).run()


async def _entries(bus: EventBus, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> list[Entry]:
    async with bus.new_consumer(topic, value=Entry, isolation_level=isolation) as reader:
        return [record.value async for record in reader.until_end() if record.value is not None]


def differences(debits: list[Entry], credits: list[Entry]) -> list[str]:
    """Return the errors in the accounts: every transfer must be once in each account, with equal amounts."""
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
        LogLocked: another process uses it.
        ConfigError: the directory does not belong to the demo.
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
    anyio.run(_serve_until_killed, os.environ["EVENTBUS_URL"], Names(sys.argv[1]))
