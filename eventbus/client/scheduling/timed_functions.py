"""Functions that are called at times: the timetable and the handler that ``@bus.every`` makes of one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import msgspec

from eventbus.client.handling.handlers import Handler, consumer_spec
from eventbus.client.host import Context
from eventbus.client.scheduling.entries import EVERY, check_id, firings_topic
from eventbus.client.scheduling.partition_schedule import Firing
from eventbus.client.scheduling.schedules import Schedules
from eventbus.client.scheduling.timetable import Missed, Timetable, timetable
from eventbus.durations import Duration
from eventbus.errors import ConfigError
from eventbus.settings.table import rows
from eventbus.types import ConsumerRecord
from serdes import Json
from serdes.nesting import shallow

logger = logging.getLogger("eventbus.scheduling")


def table_of(when: Duration | None, timezone: str | None, missed: Missed, options: Mapping[str, Any]) -> Timetable:
    """Return the times of a function. Raises ConfigError for wrong times, and for options that it cannot have."""
    for unit in ("seconds", "minutes", "hours", "days", "weeks"):
        if unit in options:
            raise ConfigError(f"@bus.every({unit}={options[unit]!r}): @bus.every(timedelta({unit}={options[unit]!r}))")
    table = timetable(when, timezone, missed)
    for option in options:
        if option in ("topics", "pattern") or option in rows("handler"):
            raise ConfigError(f"@bus.every has no option {option!r}: it is called at times, one call after another")
    return table


def timed_handler(
    context: Context, schedules: Schedules, function: Callable[..., Any], table: Timetable, options: Mapping[str, Any],
    name: str | None, frame: FrameType | None,
) -> Handler[..., Any]:  # fmt: skip
    """Return the handler of a function. Raises ConfigError for a wrong name or signature."""
    chosen = getattr(function, "__name__", "") if name is None else name
    check_id(chosen)
    topic = firings_topic(context.service_name, chosen)
    if chosen in schedules.functions or topic in schedules.firings.values():
        raise ConfigError(
            f"@bus.every: two functions are named {chosen!r}: give one of them another name with name=..."
        )
    group = f"{context.service_name}.{EVERY}{chosen}".replace(":", ".")
    defaults = {"on_error": "skip", "group": group}
    spec = consumer_spec(topic, {**defaults, **options, "name": chosen, "filter": _is_worth(table, context)})
    handler = Handler(function, msgspec.structs.replace(spec, is_firing=True), frame)
    if handler.signature.payload not in (None, Firing, ConsumerRecord):
        raise ConfigError(
            f"@bus.every: {chosen!r} takes nothing, or a Firing (and what Depends(...) gives), not a "
            f"{handler.signature.payload!r}: async def {chosen}(firing: Firing) -> None"
        )
    context.serdes.setdefault(Firing, Json(Firing))
    return handler


def _is_worth(table: Timetable, context: Context) -> Callable[[ConsumerRecord], bool]:
    def is_worth(record: ConsumerRecord) -> bool:
        try:
            firing = msgspec.json.decode(shallow(record.value or b""), type=Firing)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # Another client wrote it. It must not count as a failure of the function, which could stop it
            # (on_error="stop").
            where = f"{record.topic}-{record.partition} offset {record.offset}"
            logger.warning("The record %s is ignored. It is not the time of a function: %s", where, error)
            return False
        return not table.is_over(firing.scheduled_ms, firing.next_ms, context.now_ms())

    return is_worth
