"""Kill a service whose handler fails, again and again, and account for every record.

Run as a program: ``python -m tests.dlq.kill.kill_service WHERE TRIALS SEED``; WHERE is a directory, or
``kafka://...#NAME``, and begins with ``once:`` for a handler that works exactly once. Each trial forks a child (so that
imports are paid once) that sends orders and handles them, and kills it with SIGKILL. What the child tells of its calls
comes through a pipe. Every now and then, and at the end when all is done, the log is compared with that.
"""

from __future__ import annotations

import logging
import os
import random
import struct
import sys
from collections.abc import Generator
from functools import partial

import anyio

from eventbus import EventBus
from tests.dlq.kill.account import Account, account, disordered, unsettled, wrong
from tests.dlq.kill.service import DELAYS_S, Call, Names, Tell, send_some, service
from tests.killed import told_by_killed

CALL = struct.Struct("<HIH?")
LOOK_EVERY = 33
MOST_CALLS = 20
"""After so many a life ends at the latest; it has to send as many records."""
PATIENCE_S = 30


class Place:
    """A log, and how a service on it is killed."""

    def __init__(self, where: str) -> None:
        self.exactly_once = where.startswith("once:")
        where = where.removeprefix("once:")
        self.is_kafka = where.startswith("kafka://")
        url, _, run = where.partition("#")
        self.url = url if self.is_kafka else f"file://{where}"
        self.names = Names.of(run) if self.is_kafka else Names()

    def service(self, tell: Tell) -> EventBus:
        bus = EventBus(self.url)
        # On Kafka who was killed is a member until its session ends, unless the next one says that it is the same.
        instance = self.names.group if self.is_kafka else None
        service(bus, self.names, tell, exactly_once=self.exactly_once, instance=instance)
        return bus

    def killed(self, chance: random.Random) -> list[Call]:
        """The calls of a life that ends with SIGKILL: soon after some call, or, one in eight, while it starts."""
        work = partial(anyio.run, live, self, chance.randrange(1 << 30))
        if chance.random() < 0.125:
            return calls_of(told_by_killed(work, chance.uniform(0.01, 0.1)))
        return calls_of(told_by_killed(work, chance.uniform(0, 0.12), CALL.size * chance.randint(1, MOST_CALLS)))


async def live(place: Place, seed: int, pipe: int) -> None:
    """The child: send and handle until killed."""
    chance = random.Random(seed)
    bus = place.service(lambda call: os.write(pipe, CALL.pack(*call)))
    async with bus:
        for _ in range(MOST_CALLS):
            send_some(bus, place.names.orders, chance, 1)
            await anyio.sleep(chance.uniform(0.001, 0.01))
        await anyio.sleep_forever()


def calls_of(received: bytes) -> list[Call]:
    whole = len(received) // CALL.size * CALL.size
    return [Call(*fields) for fields in CALL.iter_unpack(received[:whole])]


async def look(place: Place) -> Account:
    async with EventBus(place.url) as bus:
        return await account(bus, place.names)


async def finish(place: Place, calls: list[Call]) -> Account:
    """The last life is not killed: it goes on until everything is done, or nothing is for long."""
    bus = place.service(calls.append)
    async with bus:
        handled, moved_at = 0, anyio.current_time()
        while not (await account(bus, place.names)).is_settled and anyio.current_time() < moved_at + PATIENCE_S:
            if len(calls) > handled:
                handled, moved_at = len(calls), anyio.current_time()
            await anyio.sleep(0.3)  # the service works in real time
    assert bus.failure is None
    return await look(place)


def lives_of(place: Place, trials: int, chance: random.Random, failures: list[str]) -> Generator[list[Call]]:
    """The calls of each life that was killed."""
    for trial in range(trials):
        yield place.killed(chance)
        if not place.is_kafka and trial % LOOK_EVERY == 0:
            found = anyio.run(look, place)
            failures += [f"after {trial + 1} kills: {each}" for each in wrong(found, exactly_once=place.exactly_once)]


def main(where: str, trials: int, seed: int) -> int:
    logging.disable(logging.CRITICAL)
    place = Place(where)
    failures: list[str] = []
    last: list[Call] = []
    lives = [*lives_of(place, trials, random.Random(seed), failures), last]
    found = anyio.run(finish, place, last)
    failures += wrong(found, exactly_once=place.exactly_once)
    failures += [*unsettled(found, 2 + len(DELAYS_S)), *disordered(found, lives)]
    for failure in failures[:20]:
        print(failure)
    print(
        f"{trials} kills, {len(found.sent):,} records, {sum(map(len, lives)):,} calls, "
        f"{sum(map(len, found.entries.values())):,} entries, {len(found.dead):,} dead letters, "
        f"{sum(found.done.values()) - len(found.done):,} done again, {len(failures)} failures"
    )
    return 1 if failures or not found.dead else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
