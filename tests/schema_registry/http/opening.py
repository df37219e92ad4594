"""A registry in memory. No fixture: a bus is left by the task that entered it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from eventbus import EventBus
from schema_registry import Registry


@asynccontextmanager
async def opened() -> AsyncGenerator[Registry]:
    async with EventBus("memory://") as bus, Registry(bus) as registry:
        yield registry
