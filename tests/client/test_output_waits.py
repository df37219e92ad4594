"""Waiting for what a handler has published: acknowledgements come in any order, and no wait keeps the loop busy."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from eventbus.backends.delivery import BatchDelivery, Delivery
from tests.client.dispatching import chunk_of, driver_of


class Counted(Delivery):
    """A delivery that is waited for once at most: it was waited for in vain otherwise, and the loop did not turn."""

    waits: int = 0

    async def wait(self) -> None:
        self.waits += 1
        assert self.waits == 1, "it is known already, and the event loop has not run in between"
        await super().wait()


async def test_outputs_may_be_acknowledged_in_reverse_order() -> None:
    """The lane waited for the last output, which was acknowledged before the first, and the loop never ran again."""
    driver = driver_of()
    driver.work.fetched(chunk_of(b"0", b"1", b"2"))
    call = driver.work.next_call()
    assert call is not None
    batches = [BatchDelivery("out", number) for number in range(3)]
    for number, batch in enumerate(batches):
        driver.published(call, number + 1, Counted(batch, 0, 0))
        call.at = number + 1

    async def acknowledge() -> None:
        for batch in reversed(batches[:2]):
            batch.resolve(0, -1)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(acknowledge)
        batches[2].resolve(0, -1)
        await driver.outputs_stored()
    assert driver.work.finished == 3
