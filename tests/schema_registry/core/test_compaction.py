"""The topic after compaction, on the engine itself: what was deleted stays deleted, no id comes back."""

from __future__ import annotations

from eventbus import EventBus
from eventbus.backends.cleaning import clean_next
from eventbus.backends.clock import timers_of
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.backends.urls import broker_config, new_id
from eventbus.log.memory import MemoryStorage
from schema_registry import ConfigUpdate, Registry, SchemaRequest
from tests.schema_registry.core.lab import INT, LONG, STRING, record

START_MS = 1_700_000_000_000
LATER_MS = START_MS + 10 * 86_400_000
"""After ``delete.retention.ms``: tombstones go as well."""


class Log:
    """A log that is opened again and again, at a time of the test's."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.now_ms = START_MS

    def backend(self) -> EmbeddedBackend:
        def now() -> int:
            return self.now_ms

        def engine() -> Engine:
            return Engine("memory", self.storage, broker_config({}), now, new_id)

        return EmbeddedBackend("memory", engine, timers_of(now))


async def test_what_is_gone_stays_gone() -> None:
    log = Log()
    small = {"cleanup.policy": "compact", "internal.segment.bytes": 500, "min.cleanable.dirty.ratio": 0.01}
    small |= {"delete.retention.ms": 0}
    async with EventBus("memory", backend=log.backend(), clock=lambda: log.now_ms) as bus:
        await bus.admin.create_topic("_schemas", configs=small)
        old = b'{"keytype":"SCHEMA","subject":"old","version":1,"magic":0}'
        await bus.send("_schemas", b'{"subject":"old","version":1,"id":1,"schema":"\\"int\\""}', key=old, partition=0)
        async with Registry(bus) as registry:
            await registry.update_config("kept", ConfigUpdate(compatibility="NONE"))
            for number in range(20):
                await registry.register("kept", SchemaRequest(schema=record(f"R{number}")))
            await registry.register("last", SchemaRequest(schema=LONG))
            for subject in ("old", "last"):
                await registry.delete_subject(subject)
                await registry.delete_subject(subject, permanent=True)
            before = list(registry.export_lines())
    for _ in range(3):
        log.now_ms += LATER_MS - START_MS
        backend = log.backend()
        async with EventBus("memory", backend=backend, clock=lambda: log.now_ms) as bus:
            async with Registry(bus) as registry:
                await registry.update_config("kept", ConfigUpdate(compatibility="NONE"))  # another segment
            while await clean_next(backend.engine):
                pass
    async with EventBus("memory", backend=log.backend(), clock=lambda: log.now_ms) as bus:
        async with bus.new_consumer("_schemas", start="earliest") as consumer:
            keys = [one.key async for one in consumer.until_end()]
        assert len(keys) < 30 and old not in keys, "it was compacted"
        async with Registry(bus) as registry:
            assert list(registry.export_lines()) == before
            assert registry.subjects(deleted=True) == ["kept"]
            assert (await registry.register("new", SchemaRequest(schema=STRING))).id == 23
            assert (await registry.register("old", SchemaRequest(schema=INT))).id == 24
