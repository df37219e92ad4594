"""Kill relays at each of their steps, repeatedly, and account for every event.

Run as a program: ``python -m tests.outbox.kill.kill_relay WHERE TRIALS SEED``; WHERE is KIND|URL|LOG: a kind of
`tests.databases`, the URL of the database, and a directory or ``kafka://...#NAME``. With KIND|URL|LOG|SCHEMA the tables
are in that schema, through a ``schema_translate_map``; transactions are SERIALIZABLE, the shop writes with a session,
and the relays of a child share a pool of one connection.

Each trial forks a child (so that imports are paid once) with one to four relays, and writes orders meanwhile. The child
ends by SIGKILL at a step, or after a while, or when nothing is left to do. From time to time, and at the end, log and
database are compared.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any, NoReturn

import anyio
import anyio.to_thread
from sqlalchemy import NullPool, make_url

from eventbus import ConsumerRecord, EventBus
from outbox.outbox import Outbox
from outbox.quarantine import Choice, Quarantine
from outbox.relay.relay import Relay
from tests.databases import Database
from tests.outbox.kill.shop import LARGEST_BYTES, PARTITIONS, Account, Shop, account, wrong
from tests.support import records_of

STEPS_ONCE = ("entered", "fenced", "renewed", "settled", "looked")
STEPS = (*STEPS_ONCE, "taken", "begun", "sent", "receipt", "committed", "deleted")
"""The steps of every life, in order."""
RARE_STEPS = ("reaped", "promoted", "quarantined", "moved", "shared", "released")
LOOK_EVERY = 33
LATEST_S = 20
"""The longest life. An alarm ends it, whatever it waits for."""
PATIENCE_S = 30


class Place:
    """A database and a log."""

    def __init__(self, where: str) -> None:
        kind, url, log, *schema = where.split("|")
        log, _, run = log.partition("#")
        options: dict[str, Any] = {}
        if schema:
            options = {
                "isolation_level": "SERIALIZABLE",
                "execution_options": {"schema_translate_map": {None: schema[0]}},
            }
        self.has_sessions = bool(schema)
        self.database = Database(kind, make_url(url), **options)
        engine = self.database.new_engine(pool_size=1, max_overflow=0) if schema else self.database.engine
        self.outbox = Outbox(engine, shards=16, notify=False, archive=True)
        self.is_kafka = log.startswith("kafka://")
        self.url = log if self.is_kafka else f"file://{log}"
        self.topic = f"orders-{run}" if run else "orders"
        self.is_sqlite = self.database.plain.dialect.name == "sqlite"

    def shop(self, chance: random.Random) -> Shop:
        # A connection of SQLite must not be open while its process forks.
        engine = self.database.new_plain(**{"poolclass": NullPool} if self.is_sqlite else {})
        return Shop(engine, self.outbox, self.topic, chance, has_sessions=self.has_sessions)

    def bus(self, relays: Sequence[Relay] = ()) -> EventBus:
        bus = EventBus(self.url)
        bus.topic(self.topic, partitions=PARTITIONS, configs={"max.message.bytes": LARGEST_BYTES})
        for relay in relays:
            bus.include(relay)
        return bus

    def relay(self) -> Relay:
        return self.outbox.relay(batch_size=7, poll_ms=(1, 20), lease_ms=1_000, listen=False, create_tables=False)


# a life that is killed ------------------------------------------------------------------------------------------------


class End:
    """The end of a life: the n-th time of a step, a number of seconds after the start, or when all is done."""

    def __init__(
        self, step: str, times: int = 1, seconds: float = LATEST_S, by: signal.Signals = signal.SIGKILL
    ) -> None:
        self.step = step
        self.seconds = seconds
        self._times = times
        self._by = by

    @classmethod
    def drawn(cls, chance: random.Random, trial: int) -> End:
        step = chance.choice(RARE_STEPS) if chance.random() < 0.2 else STEPS[trial % len(STEPS)]
        times = 1 if step in STEPS_ONCE else chance.randint(1, 3)
        return cls(step, times, chance.uniform(0.02, 0.3) if chance.random() < 0.15 else LATEST_S)

    async def at(self, step: str) -> None:
        if step == self.step:
            self._times -= 1
            if not self._times:
                os.kill(os.getpid(), self._by)


class Life:
    """A process with relays. It runs until its end, or until `last` was called and it has nothing to do."""

    def __init__(self, place: Place, end: End, relays: int) -> None:
        self.end = end
        readable, self._writable = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            os.close(self._writable)
            _live(place, end, relays, readable)
        os.close(readable)

    def last(self) -> str:
        """Stop writing, and return what ended the life: a step, an "alarm", or "nothing" if nothing was left to do."""
        os.close(self._writable)
        _, status = os.waitpid(self.process, 0)
        if os.WIFSIGNALED(status):
            return self.end.step if os.WTERMSIG(status) == signal.SIGKILL else "alarm"
        assert os.WEXITSTATUS(status) == 0, "the process ended by itself"
        return "nothing"


def _live(place: Place, end: End, relays: int, readable: int) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, end.seconds)
        anyio.run(_work, place, end, relays, readable)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


async def _work(place: Place, end: End, count: int, readable: int) -> NoReturn:
    relays = [place.relay() for _ in range(count)]
    for relay in relays:
        relay._at = end.at
    async with place.bus(relays) as bus:
        await bus.drain()
        await anyio.to_thread.run_sync(os.read, readable, 1)  # until the shop is closed
        await bus.drain()
        os._exit(0)  # without cleanup


def lives(place: Place, shop: Shop, chance: random.Random, trial: int) -> list[str]:
    """Run relays concurrently, in one process or, if the log allows that, in several. Return what ended each."""
    relays = chance.choice((1, 1, 1, 2, 4))
    if place.is_kafka:
        begun = [Life(place, End.drawn(chance, trial + number), 1) for number in range(relays)]
    else:
        begun = [Life(place, End.drawn(chance, trial), relays)]
    shop.trade(6, slow=0 if place.is_sqlite else 3)
    return [life.last() for life in begun]


def disguise(place: Place, *, expired: bool) -> None:
    """Move the previous relays to another machine, so that only their leases show whether they live."""
    relays = place.outbox.tables.relays
    changes: dict[str, Any] = {"host": "elsewhere/1@0"}
    if expired:
        changes["expires_at_ms"] = 0
    engine = place.database.new_plain(poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(relays.update().values(**changes))


# the account ----------------------------------------------------------------------------------------------------------


async def read(place: Place, bus: EventBus) -> list[ConsumerRecord]:
    return await records_of(bus, place.topic)


async def look(place: Place) -> Account:
    async with place.bus() as bus:
        published = await read(place, bus)
    engine = place.database.new_plain(poolclass=NullPool)
    return account(engine, place.outbox, published)


async def finish(place: Place) -> Account:
    """Run the last life until everything is settled. It is not killed, and the log accepts what it refused before."""
    quarantine = Quarantine(place.outbox.database(), place.outbox.tables)
    async with place.bus([place.relay()]) as bus:
        await bus.admin.alter_configs(place.topic, {"max.message.bytes": 1_048_576})
        with anyio.fail_after(PATIENCE_S):
            while True:
                await bus.drain()
                await quarantine.retry(Choice())
                found = account(place.database.plain, place.outbox, await read(place, bus))
                if found.is_settled:
                    return found
                await anyio.sleep(0.02)  # a lease that is not over, an event that is not due: real time


def main(where: str, trials: int, seed: int) -> int:
    logging.disable(logging.CRITICAL)
    faulthandler.dump_traceback_later(60 + 2 * trials, exit=True)  # shows where a trial hangs
    chance = random.Random(seed)
    place = Place(where)
    shop = place.shop(chance)
    shop.open()
    ends: Counter[str] = Counter()
    failures: list[str] = []
    for trial in range(trials):
        ends.update(lives(place, shop, chance, trial))
        if chance.random() < 0.4:
            disguise(place, expired=chance.random() < 0.7)
        if (trial + 1) % LOOK_EVERY == 0 and not place.is_kafka:
            failures += [f"after {trial + 1} kills: {each}" for each in wrong(anyio.run(look, place))]
    shop.close()
    found = anyio.run(finish, place)
    failures += wrong(found)
    for failure in failures[:20]:
        print(failure)
    print(
        f"{trials} kills ({', '.join(f'{end}: {count}' for end, count in ends.most_common())}), "
        f"{len(found.orders):,} orders, {len(failures)} failures"
    )
    return 1 if failures or (trials >= 100 and not ends.keys() >= {*STEPS}) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
