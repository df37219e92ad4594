"""Kill the bank of examples/25_bank_transfer.py repeatedly, and audit where the money is.

Run as a program: ``python -m tests.outbox.bank.kill_bank FOLDER#DATABASE_URL TRIALS SEED``. Each trial forks a child
(so that imports are paid once) that asks for transfers and runs the whole bank, and kills it with SIGKILL. The child
reports each committed transfer through a pipe. After each kill the books are audited. The last life continues until
everything is settled.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import uuid
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from sqlalchemy import Engine, create_engine, event

from eventbus import EventBus
from tests.killed import told_by_killed
from tests.outbox.bank.books import Books, bank, books, unsettled, wrong

TRANSFER_BYTES = 16
MOST_TRANSFERS = 15
"""The longest life, in transfers."""
LEASE_MS = 1_000


def open_database(url: str) -> Engine:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", never_wait_for_the_disk)
    return engine


def never_wait_for_the_disk(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")  # a process is killed, not a machine


def killed(log: str, database: str, chance: random.Random) -> set[str]:
    """Return the transfers of a life that ends with SIGKILL: soon after some of them or, one in eight, during its
    start.
    """
    work = partial(anyio.run, live, log, database, chance.randrange(1 << 30))
    if chance.random() < 0.125:
        told = told_by_killed(work, chance.uniform(0.01, 0.15))
    else:
        told = told_by_killed(work, chance.uniform(0, 0.1), TRANSFER_BYTES * chance.randint(1, MOST_TRANSFERS))
    whole = range(0, len(told) // TRANSFER_BYTES * TRANSFER_BYTES, TRANSFER_BYTES)
    return {str(uuid.UUID(bytes=told[begin : begin + TRANSFER_BYTES])) for begin in whole}


async def live(log: str, database: str, seed: int, pipe: int) -> None:
    """Run the child: the whole bank and a customer, until killed."""
    chance = random.Random(seed)
    bank.fails_at.update(chance.sample(range(1, 100), 20))
    bus, sessions = bank.bank(open_database(database), log, lease_ms=LEASE_MS)

    def ask() -> None:
        source, target = chance.sample(bank.CUSTOMERS, 2)
        try:
            with sessions.begin() as session:
                id = bank.transfer(session, source, target, chance.randrange(1, 100))
        except bank.Refused:
            return
        os.write(pipe, uuid.UUID(id).bytes)

    async with bus:
        for _ in range(10 * MOST_TRANSFERS):
            await anyio.to_thread.run_sync(ask)
            await anyio.sleep(chance.uniform(0, 0.01))
        await anyio.sleep_forever()


async def finish(log: str, database: str) -> None:
    """Run the last life until everything is settled. It is not killed."""
    bus, _ = bank.bank(open_database(database), log, lease_ms=LEASE_MS)
    async with bus:
        await bus.drain()
    assert bus.failure is None


def audit(log: str, database: str) -> Books:
    async def look() -> Books:
        engine = open_database(database)
        try:
            async with EventBus(log) as bus:
                return await books(bus, engine)
        finally:
            engine.dispose()

    return anyio.run(look)


def main(where: str, trials: int, seed: int) -> int:
    logging.disable(logging.CRITICAL)
    folder, _, database = where.partition("#")
    log = f"file://{folder}"
    chance = random.Random(seed)
    engine = open_database(database)
    bank.bank(engine, log)  # so that the accounts have money
    engine.dispose()
    asked: set[str] = set()
    failures: list[str] = []
    for trial in range(trials):
        asked |= killed(log, database, chance)
        failures += [f"after {trial + 1} kills: {each}" for each in wrong(audit(log, database), asked)]
    anyio.run(finish, log, database)
    found = audit(log, database)
    failures += [*wrong(found, asked), *unsettled(found)]
    for failure in failures[:20]:
        print(failure)
    count = len(found.records["receipts"])
    print(f"{trials} kills, {count:,} transfers, {len(asked):,} of them told, {len(failures)} failures")
    return 1 if failures or not asked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
