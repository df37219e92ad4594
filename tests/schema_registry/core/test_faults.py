"""What goes wrong while something is written: lost answers, a pen that is taken, a full disk, aborted records."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from eventbus import EventBus
from eventbus.errors import InvalidProducerIdMapping, RequestTimedOut, TransactionOutcomeUnknown
from eventbus.log.memory import MemoryStorage
from eventbus.testing import TestBus
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import FaultyStorage, disk_full
from schema_registry import Registry, SchemaRequest
from schema_registry.ledger import Ledger, Stored
from schema_registry.schemas import Schemas
from tests.schema_registry.core.lab import INT, LONG, STRING, refused

PEN = "schema-registry._schemas"


def request(text: str) -> SchemaRequest:
    return SchemaRequest(schema=text)


@asynccontextmanager
async def running() -> AsyncGenerator[tuple[TestBus, Registry]]:
    async with TestBus() as bus, Registry(bus) as registry:
        await registry.register("first", request(INT))
        yield bus, registry


async def test_the_pen_is_taken() -> None:
    async with running() as (bus, registry):
        for number, text in enumerate((LONG, STRING), 2):
            await bus.log.faults.fence(PEN)
            assert (await registry.register("a" * number, request(text))).id == number


async def test_a_pen_that_was_forgotten() -> None:
    """Kafka's transactional.id.expiration.ms: a week without a registration."""
    async with running() as (bus, registry):
        bus.log.faults.fail_next("flush", InvalidProducerIdMapping("forgotten"))
        assert (await registry.register("second", request(LONG))).version == 1


@pytest.mark.parametrize("error", [TransactionOutcomeUnknown("no answer"), RequestTimedOut("no answer")])
@pytest.mark.parametrize("after", [True, False])
async def test_a_commit_that_nobody_answers(error: Exception, after: bool) -> None:
    """Done or not, it is found out: the caller gets the answer of the one deletion there was."""
    async with running() as (bus, registry):
        bus.log.faults.fail_next("commit_transaction", error, after=after)
        assert await registry.delete_subject("first") == [1]
        bus.log.faults.fail_next("commit_transaction", error, after=after)
        assert (await registry.register("second", request(LONG))).version == 1
        assert registry.versions("second") == [1] and registry.subjects() == ["second"]


@pytest.mark.parametrize("step", ["send", "flush", "init_transactions"])
async def test_a_request_that_is_lost(step: Literal["send", "flush", "init_transactions"]) -> None:
    async with running() as (bus, registry):
        bus.log.faults.fail_next(step, times=2)
        if step == "init_transactions":
            await bus.log.faults.fence(PEN)
        assert (await registry.register("second", request(LONG))).version == 1
        assert registry.versions("second") == [1]


async def test_a_full_disk() -> None:
    storage = FaultyStorage(MemoryStorage(), error=disk_full, persistent=True, only=("append", "pwrite"))
    async with bus_on(storage) as bus, Registry(bus) as registry:
        await registry.register("first", request(INT))
        storage.fail_at = storage.calls_count + 1
        with refused(500, 50001):
            await registry.register("second", request(LONG))
        assert registry.subjects() == ["first"] and registry.schema_by_id(1).schema == INT
        storage.heal()
        assert (await registry.register("third", request(STRING))).version == 1
        assert registry.subjects() == ["first", "third"]


async def abort(bus: EventBus) -> None:
    """A writer that dies between its record and its commit."""
    async with bus.new_producer(transactional_id=PEN) as dying:
        await dying.begin()
        key = b'{"keytype":"SCHEMA","subject":"lost","version":1,"magic":1}'
        value = b'{"subject":"lost","version":1,"id":2,"schema":"\\"bytes\\"","deleted":false}'
        await dying.send("_schemas", value, key=key, partition=0)
        await dying.abort()


@pytest.mark.parametrize("runs", [True, False])
async def test_ids_of_aborted_records_are_not_given(runs: bool) -> None:
    """A registry that reads uncommitted records, as Confluent's does, has seen them: they must not mean two schemas."""
    async with EventBus("memory://") as bus:
        async with Registry(bus) as registry:
            await registry.register("first", request(INT))
            if runs:
                await abort(bus)
                assert (await registry.register("second", request(LONG))).id == 3
        if not runs:
            await abort(bus)
        async with Registry(bus) as registry:
            assert (await registry.register("second", request(LONG))).id == 3
        ledger = Ledger("_schemas", Schemas())
        async with bus.new_consumer("_schemas", start="earliest", isolation_level="read_uncommitted") as consumer:
            async for one in consumer.until_end():
                ledger.take([Stored(one.offset, one.key, one.value)])
        assert not ledger.settled.conflicts
        assert sorted(ledger.settled.subjects) == ["first", "lost", "second"]
