"""Compaction in the background: runs the cleanings that are due, a few milliseconds at a time.

The work stays on the event loop, in slices with pauses between them, because a thread would hold the interpreter's lock
for as long, and less evenly. Only the flushes wait in a thread.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread

from eventbus.errors import EventBusError
from eventbus.log.cleaner import Stale
from eventbus.log.segment import Damage

if TYPE_CHECKING:
    from eventbus.backends.engine import Engine


def look_seconds(engine: Engine) -> float:
    """Return the interval between checks for due cleanings."""
    backoff_ms = engine.config.log_cleaner_backoff_ms
    # A clock that is not the timers', such as a number set by a test, may advance by any amount within a second.
    return (backoff_ms if engine.timers is engine.clock else min(backoff_ms, 1_000)) / 1_000


async def clean_logs(engine: Engine, next_ms: int) -> None:
    """Compact what is due, while the engine runs. The log's clock decides what is due; it may be a test's.

    ``next_ms``: the time of the first check.
    """
    while True:
        if engine.now_ms() >= next_ms:
            while await clean_next(engine):
                pass
            next_ms = engine.now_ms() + engine.config.log_cleaner_backoff_ms
        await engine.timers.sleep(look_seconds(engine))


async def clean_next(engine: Engine) -> bool:
    """Run the most urgent compaction; return False if none is due, or if it failed: try again later."""
    broker = engine.broker
    if engine.config.fsync == "os" and broker.needs_sync:
        try:
            # Nothing else flushes sealed segments, and only flushed segments are compacted.
            await engine.flushes.flush_all()
        except EventBusError:
            return False
    cleaning = broker.next_cleaning(engine.clock())
    if cleaning is None:
        return False
    try:
        with contextlib.closing(broker.run_cleaning(cleaning)) as run:
            for pause in run:
                if pause is None:
                    await anyio.lowlevel.checkpoint()
                else:
                    await anyio.to_thread.run_sync(pause)
    except BaseException as error:
        broker.complete_cleaning(cleaning, error)
        if isinstance(error, (OSError, EventBusError, Damage, Stale)):
            return False
        raise
    broker.complete_cleaning(cleaning)
    return True
