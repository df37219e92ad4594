"""A bus on a storage of the test: one that crashes, fails, or is inspected."""

from __future__ import annotations

from typing import Any, Unpack

from eventbus.backends.clock import Clock, timers_of
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.backends.urls import broker_config, new_id, system_clock
from eventbus.client.bus import EventBus
from eventbus.client.keywords import BusOptions
from eventbus.log.storage import Storage
from eventbus.settings.table import rows


def bus_on(storage: Storage, *, clock: Clock = system_clock, **config: Unpack[BusOptions]) -> EventBus:
    """Return a bus on ``storage``; the keywords are those of `EventBus`. It uses the normal engine."""
    settings = broker_config({key: value for key, value in config.items() if key in rows("log")})
    name = storage.describe()

    def engine() -> Engine:
        return Engine(name, storage, settings, clock, new_id)

    rest: dict[str, Any] = {key: value for key, value in config.items() if key not in rows("log")}
    return EventBus(name, backend=EmbeddedBackend(name, engine, timers_of(clock)), clock=clock, **rest)
