"""Compaction beside everything else: carries out what the broker finds due, a few milliseconds at a time.

The work stays on the event loop, in slices with room for others between them, because in a thread it would hold the
interpreter's lock against the loop for as long, and less evenly. Only the flushes wait in a thread.
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
    """Between looks at what is due."""
    backoff_ms = engine.config.log_cleaner_backoff_ms
    # A clock that cannot be waited by, say a number of a test's, may have gone far within a second.
    return (backoff_ms if engine.timers is engine.clock else min(backoff_ms, 1_000)) / 1_000


async def clean_logs(engine: Engine, next_ms: int) -> None:
    """Compact what is due, as long as the engine runs. What is due goes by the log's clock, which may be a test's.

    ``next_ms``: not before.
    """
    while True:
        if engine.now_ms() >= next_ms:
            while await clean_next(engine):
                pass
            next_ms = engine.now_ms() + engine.config.log_cleaner_backoff_ms
        await engine.timers.sleep(look_seconds(engine))


async def clean_next(engine: Engine) -> bool:
    """Compact the log that needs it most; False when none is due, or it did not work out: try again later."""
    broker = engine.broker
    if engine.config.fsync == "os" and broker.needs_sync:
        try:
            # Nobody else flushes what was sealed, and only that is compacted.
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
