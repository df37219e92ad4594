"""Kill a service with a failing handler repeatedly, and account for every record.

Run as a program: ``python -m tests.dlq.kill.kill_service WHERE TRIALS SEED``; WHERE is a directory or
``kafka://...#NAME``, with the prefix ``once:`` for an exactly-once handler. Each trial forks a child (so that imports
are paid once) that sends orders and handles them, and kills it with SIGKILL. The child reports its calls through a
pipe. From time to time, and at the end when everything is settled, the log is compared with the calls.
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
"""The longest life, in calls. A life sends as many records."""
PATIENCE_S = 30


class Place:
    """A log, and how to kill a service on it."""

    def __init__(self, where: str) -> None:
        self.exactly_once = where.startswith("once:")
        where = where.removeprefix("once:")
        self.is_kafka = where.startswith("kafka://")
        url, _, run = where.partition("#")
        self.url = url if self.is_kafka else f"file://{where}"
        self.names = Names.of(run) if self.is_kafka else Names()

    def service(self, tell: Tell) -> EventBus:
        bus = EventBus(self.url)
        # On Kafka a killed process stays a member until its session ends, unless its successor has the same instance
        # id.
        instance = self.names.group if self.is_kafka else None
        service(bus, self.names, tell, exactly_once=self.exactly_once, instance=instance)
        return bus

    def killed(self, chance: random.Random) -> list[Call]:
        """Return the calls of a life that ends with SIGKILL: soon after a call or, one in eight, during its start."""
        work = partial(anyio.run, live, self, chance.randrange(1 << 30))
        if chance.random() < 0.125:
            return calls_of(told_by_killed(work, chance.uniform(0.01, 0.1)))
        return calls_of(told_by_killed(work, chance.uniform(0, 0.12), CALL.size * chance.randint(1, MOST_CALLS)))


async def live(place: Place, seed: int, pipe: int) -> None:
    """Run the child: send and handle until killed."""
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
    """Run the last life until everything is settled, or nothing happens for long. It is not killed."""
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
    """Yield the calls of each killed life."""
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
