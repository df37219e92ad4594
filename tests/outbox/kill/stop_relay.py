"""Stop a relay's process with SIGSTOP at each of its steps, let another take over, and let it go on: without effect.

Run as a program: ``python -m tests.outbox.kill.stop_relay WHERE STOPS SEED``; WHERE is as `kill_relay` has it, with a
log on the network.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import random
import signal
import sys
from itertools import cycle, islice

import anyio

from tests.outbox.kill.kill_relay import End, Life, Place, disguise, finish
from tests.outbox.kill.shop import wrong

STEPS = ("taken", "receipt", "renewed", "begun", "sent", "committed", "deleting")
TRANSACTIONS = 6


def stopped(place: Place, chance: random.Random, step: str) -> str:
    """A life that stands still at the step while its lease ends and another goes on; what has ended it."""
    shop = place.shop(chance)
    shop.share_of_large_events = 0  # when each key has one, a relay sends nothing, and does not reach the step
    shop.trade(TRANSACTIONS)
    life = Life(place, End(step, by=signal.SIGSTOP), 1)
    _, status = os.waitpid(life.process, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"it ended before it was at {step!r}"
    disguise(place, expired=True)
    shop.trade(TRANSACTIONS)
    assert Life(place, End("never"), 1).last() == "nothing"
    shop.trade(TRANSACTIONS)
    os.kill(life.process, signal.SIGCONT)
    return life.last()


def main(where: str, stops: int, seed: int) -> int:
    logging.disable(logging.CRITICAL)
    faulthandler.dump_traceback_later(60 + 10 * stops, exit=True)  # what hangs says where
    chance = random.Random(seed)
    place = Place(where)
    place.shop(chance).open()
    ends = [stopped(place, chance, step) for step in islice(cycle(STEPS), stops)]
    found = anyio.run(finish, place)
    failures = [*wrong(found), *(f"a life ended by {end!r}" for end in ends if end != "nothing")]
    for failure in failures[:20]:
        print(failure)
    print(f"{len(ends)} stops, {len(found.orders):,} orders, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
