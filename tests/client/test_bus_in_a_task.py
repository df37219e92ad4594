"""A bus that lives in a task, whose end is not its own: the error that leaves it must not lead back to itself.

contextlib's `AsyncExitStack` makes an error its own ``__context__`` when one of its callbacks raises it once more, and
anyio follows that chain until it ends: the whole event loop stood still, at 100 % CPU.
"""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from tests.client.trials import run_the_same, turns


def declared() -> EventBus:
    bus = EventBus("memory://")
    bus.topic("t")

    @bus.consumer("t", group="g")
    async def handle(value: bytes) -> None: ...

    return bus


def check_its_chain_ends(error: BaseException) -> None:
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None:
        assert all(following is not one for one in seen), f"{following!r} leads to itself"
        seen.append(following)
        following = following.__context__


async def cancelled_after(steps: int) -> None:
    with anyio.CancelScope() as scope:
        try:
            async with anyio.create_task_group() as tasks:

                async def cancel() -> None:
                    await turns(steps)
                    scope.cancel()

                tasks.start_soon(cancel)
                try:
                    async with declared():
                        await anyio.sleep_forever()
                except anyio.get_cancelled_exc_class() as error:
                    check_its_chain_ends(error)
                    raise
        except anyio.get_cancelled_exc_class() as error:
            check_its_chain_ends(error)
            raise


@pytest.mark.system
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_leaves_a_cancelled_bus_does_not_lead_back_to_itself(backend: str) -> None:
    for steps in range(40):
        run_the_same(backend, cancelled_after, steps)


async def beside_an_error() -> None:
    with pytest.raises(ExceptionGroup):
        async with anyio.create_task_group() as tasks:
            running = anyio.Event()

            async def live() -> None:
                async with declared():
                    running.set()
                    await anyio.sleep_forever()

            tasks.start_soon(live)
            await running.wait()
            await turns(30)
            raise ValueError("of another task")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_bus_in_a_task_of_a_group_that_fails(backend: str) -> None:
    run_the_same(backend, beside_an_error)
