"""Kill or suspend two banks of examples/25_bank_transfer.py that share a served log and a database.

Run as a program: ``python -m tests.outbox.bank.two_services FOLDER#DATABASE_URL TRIALS SEED``. The banks share
partitions and shards, take over from each other, and one that was suspended for longer than its leases returns as a
zombie. The last life continues until everything is settled; then the books are audited.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import anyio
import anyio.to_thread
from sqlalchemy import Engine

from tests.clients.serving import Served
from tests.outbox.bank.books import bank, unsettled, wrong
from tests.outbox.bank.kill_bank import TRANSFER_BYTES, audit, open_database

LEASE_MS = 2_000
SESSION = "?session.timeout.ms=6000&heartbeat.interval.ms=1000"
PATIENCE_S = 90


async def live(log: str, database: str, told: str, seed: int) -> None:
    """Run a service and its customers until killed."""
    chance = random.Random(seed)
    bus, sessions = bank.bank(open_database(database), log, lease_ms=LEASE_MS)
    with Path(told).open("ab", buffering=0) as file:

        def ask() -> None:
            source, target = chance.sample(bank.CUSTOMERS, 2)
            with sessions.begin() as session:
                id = bank.transfer(session, source, target, chance.randint(1, 5))
            file.write(uuid.UUID(id).bytes)

        async with bus:
            while True:
                await anyio.to_thread.run_sync(ask)
                await anyio.sleep(chance.uniform(0.05, 0.3))


async def finish(log: str, database: str) -> None:
    """Run until the killed members have timed out, and their work is done."""
    bus, _ = bank.bank(engine := open_database(database), log, lease_ms=LEASE_MS)
    async with bus:
        with anyio.fail_after(PATIENCE_S):
            while True:
                await bus.drain()
                if not await anyio.to_thread.run_sync(is_anything_left, engine):
                    break
                await anyio.sleep(0.5)  # sessions end in real time
    engine.dispose()


def is_anything_left(engine: Engine) -> bool:
    with engine.connect() as connection:
        return any(connection.execute(table.select()).first() for table in (bank.on_its_way, bank.outbox.tables.events))


class Service:
    """A process, which is started again after its death."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self.begin()

    def begin(self) -> None:
        command = [sys.executable, "-m", "tests.outbox.bank.two_services", "live", *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        status = self._process.wait()
        assert status == -signal.SIGKILL, f"it ended by itself: {status}"

    def stop_for(self, seconds: float) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        time.sleep(seconds)  # leases and sessions end in real time
        os.kill(self._process.pid, signal.SIGCONT)


def trouble(services: list[Service], trials: int, chance: random.Random) -> None:
    for _ in range(trials):
        time.sleep(chance.uniform(2, 6))  # gives the services time to work
        service = chance.choice(services)
        if chance.random() < 0.4:
            service.stop_for(chance.uniform(1, 9))
        else:
            service.kill()
            service.begin()


def main(where: str, trials: int, seed: int) -> int:
    logging.disable(logging.CRITICAL)
    folder, _, database = where.partition("#")
    told, chance = Path(folder) / "told", random.Random(seed)
    engine = open_database(database)
    bank.bank(engine, "memory://")  # so that the accounts have money
    engine.dispose()
    with Served(Path(folder) / "log") as server:
        log = f"kafka://{server.bootstrap}{SESSION}"
        services = [Service(log, database, str(told), str(seed + one)) for one in range(2)]
        try:
            trouble(services, trials, chance)
        finally:
            for service in services:
                service.kill()
        anyio.run(finish, log, database)
        found = audit(log, database)
    ids = told.read_bytes()
    asked = {str(uuid.UUID(bytes=ids[at : at + TRANSFER_BYTES])) for at in range(0, len(ids), TRANSFER_BYTES)}
    failures = [*wrong(found, asked), *unsettled(found)]
    print(*failures[:20], sep="\n")
    print(f"{trials} times trouble, {len(asked):,} transfers told, {len(failures)} failures")
    return 1 if failures or not asked else 0


if __name__ == "__main__":
    if sys.argv[1] == "live":
        anyio.run(live, *sys.argv[2:5], int(sys.argv[5]))
    else:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
