"""Code shared by ready-made middleware: the bus's time, and handling of batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from eventbus.backends.clock import RealTimers, Timers
from eventbus.errors import ConfigError
from eventbus.types import ConsumerRecord

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus


class Timed:
    """Middleware that uses the time of its bus, which starts it like every `Part`."""

    def __init__(self) -> None:
        self._timers: Timers = RealTimers()

    async def start(self, bus: EventBus) -> None:
        self._timers = bus.context.backend.timers

    async def aclose(self) -> None: ...


def records_of(given: Any) -> list[ConsumerRecord]:
    """Return the record, or the records of a batch."""
    return cast("list[ConsumerRecord]", given) if isinstance(given, list) else [cast("ConsumerRecord", given)]


def place_of(records: list[ConsumerRecord]) -> str:
    first, last = records[0], records[-1]
    place = f"{first.topic}-{first.partition} offset {first.offset}"
    return place if len(records) == 1 else f"{place} to {last.offset} ({len(records)} records)"


def positive(where: str, value: Any) -> float:
    """Return a number above 0, or raise ConfigError. ``where``: the argument, as in "RateLimit(per_second"."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"{where}={value!r}): a number above 0")
    return float(value)


def whole(where: str, value: Any) -> int:
    """Return an integer of at least 1, or raise ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}={value!r}): a whole number of at least 1")
    return value
