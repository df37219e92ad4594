"""Registrations through power cuts at random calls of the disk, over several lives, with deletions in between.

After each life: what was answered is there, under the id that was answered; an id never meant two schemas, in no life,
nor was it given again after its schema had gone for good.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import anyio
import pytest

from eventbus.errors import EventBusError
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage, SimulatedCrash
from schema_registry import Registry, RegistryError, SchemaRequest
from tests.schema_registry.core.lab import record
from tests.tiers import of_today

pytestmark = pytest.mark.system

WRITERS = 4


class History:
    """What was answered over all lives."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.storage = CrashStorage()
        self.ids: dict[int, str] = {}
        """What each id that was ever seen means."""
        self.stored: dict[str, tuple[str, int]] = {}
        """By subject: the text and id that were answered last, if nothing is under way."""

    async def live_and_die(self) -> None:
        storage = self.storage
        storage.crash_at_call = storage.calls_count + self.random.randint(1, 400)
        with suppress(SimulatedCrash, EventBusError, ExceptionGroup):
            async with bus_on(storage) as bus, Registry(bus) as registry, anyio.create_task_group() as tasks:
                for which in range(WRITERS):
                    tasks.start_soon(self.write, registry, which)
        assert storage.stopped, "it ended before it crashed"
        self.storage = storage.crash(self.random)

    async def write(self, registry: Registry, which: int) -> None:
        while not self.storage.stopped:
            subject = f"s{which}-{self.random.randrange(3)}"
            text = record(f"R{self.random.randrange(40)}")
            self.stored.pop(subject, None)  # until it is answered it may be either
            try:
                if self.random.random() < 0.25 and subject in registry.subjects():
                    await registry.delete_subject(subject)
                    await registry.delete_subject(subject, permanent=True)
                    continue
                schema = await registry.register(subject, SchemaRequest(schema=text), force=True)
            except RegistryError as error:
                assert error.error_code in (50001, 40401), error
                return
            self.means(schema.id, schema.schema)
            self.stored[subject] = text, schema.id

    def means(self, id: int, text: str) -> None:
        assert self.ids.setdefault(id, text) == text, f"id {id} was {self.ids[id]}, and is {text}"

    async def look(self) -> None:
        async with bus_on(self.storage) as bus, Registry(bus) as registry:
            for version in registry.schemas(deleted=True):
                self.means(version.id, version.schema)
            for subject, (text, id) in self.stored.items():
                assert registry.lookup(subject, SchemaRequest(schema=text)).id == id
            again = await registry.register("look", SchemaRequest(schema=record(f"L{len(self.ids)}")), force=True)
            assert again.id not in self.ids, f"id {again.id} is given again"
            self.means(again.id, again.schema)


async def run(seed: int) -> None:
    history = History(seed)
    try:
        with anyio.fail_after(60):
            for _ in range(history.random.randint(1, 4)):
                await history.live_and_die()
                await history.look()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


async def test_crashes() -> None:
    for seed in range(8):
        await run(seed)


@pytest.mark.slow  # the same, more often
@pytest.mark.timeout(900)
async def test_many_crashes() -> None:
    for seed in of_today(range(1_000, 2_000)):
        await run(seed)
