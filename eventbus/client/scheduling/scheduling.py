"""`cancel_scheduled` and ``@bus.every``, for the bus."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from eventbus.client.handling.handlers import ConsumerDecorator, Handler, calling_frame, consumer_spec
from eventbus.client.host import Context
from eventbus.client.producing.joining import refuse_waiting
from eventbus.client.scheduling.entries import EVERY, check_id, firings_topic
from eventbus.client.scheduling.partition_schedule import Firing
from eventbus.client.scheduling.schedules import Schedules
from eventbus.client.scheduling.times import Scheduled
from eventbus.client.scheduling.timetable import Missed, Timetable, timetable
from eventbus.durations import Duration, seconds
from eventbus.errors import ConfigError
from eventbus.settings.table import rows
from eventbus.types import ConsumerRecord
from serdes import Json
from serdes.nesting import shallow

if TYPE_CHECKING:
    from eventbus.client.keywords import ScheduleOptions

logger = logging.getLogger("eventbus.scheduling")

_FIRINGS_CONFIG = {"retention.ms": "86400000"}


class Scheduling(ABC):
    """Adds `every` and `cancel_scheduled` to a class that has handlers and can send."""

    _schedules: Schedules

    @property
    @abstractmethod
    def context(self) -> Context: ...

    @abstractmethod
    def topic(
        self, name: str, *, partitions: int | None = None, configs: Mapping[str, object] | None = None
    ) -> None: ...

    @abstractmethod
    def _declare_handler(self, handler: Handler[Any, Any]) -> None: ...

    @abstractmethod
    def _running(self, what: str) -> Any: ...

    def every(
        self,
        when: Duration | None = None,
        *,
        timezone: str | None = None,
        missed: Missed = "once",
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ConsumerDecorator:
        """Decorate a function to be called at times: ``@bus.every("*/5 * * * *")``, ``@bus.every("30s")``.

        ``when`` is a cron expression of five fields, in ``timezone`` ("UTC" by default), or an interval: seconds,
        ``"30s"``, ``"1h30m"``, or a timedelta. The function may be async, takes no argument or a `Firing`, and may use
        `Depends` and ``@bus.producer``. At each time, one instance of the service (all buses with this ``service=`` on
        the log) calls it, also after a restart. On a durable log the bus needs ``service=``.

        ``missed`` decides about times while no instance was running: "once" (one call for all of them), "skip" (no
        call, unless the last time was within a minute), or "all". With "once" and "skip", a call that would begin so
        late that the next one is due is omitted, so a function that takes longer than its interval is not called twice
        in a row.

        ``options`` are the options of ``@bus.consumer`` for a call: ``retry``, ``timeout``, ``on_error`` (the default
        "skip" logs the error and waits for the next time), ``exactly_once``, ``tx``, ``middleware``, ``group``. A call
        interrupted by a crash is repeated unless the next one is due. ``name``, by default the function's, identifies
        it across restarts. Raises ConfigError for a wrong expression, time zone, option or name.
        """
        given: dict[str, Any] = {**options}
        for unit in ("seconds", "minutes", "hours", "days", "weeks"):
            if unit in given:
                raise ConfigError(f"@bus.every({unit}={given[unit]!r}): @bus.every(timedelta({unit}={given[unit]!r}))")
        table = timetable(when, timezone, missed)
        for option in given:
            if option in ("topics", "pattern") or option in rows("handler"):
                raise ConfigError(f"@bus.every has no option {option!r}: it is called at times, one call after another")
        frame = calling_frame()

        def register(function: Callable[..., Any]) -> Handler[..., Any]:
            chosen = getattr(function, "__name__", "") if name is None else name
            check_id(chosen)
            topic = firings_topic(self.context.service_name, chosen)
            known = self._schedules.functions
            if chosen in known or topic in self._schedules.firings.values():
                raise ConfigError(
                    f"@bus.every: two functions are named {chosen!r}: give one of them another name with name=..."
                )
            group = f"{self.context.service_name}.{EVERY}{chosen}".replace(":", ".")
            spec = consumer_spec(
                topic,
                {"on_error": "skip", "group": group, **given, "name": chosen, "filter": self._is_worth(table)},
            )
            handler = Handler(function, msgspec.structs.replace(spec, is_firing=True), frame)
            if handler.signature.payload not in (None, Firing, ConsumerRecord):
                raise ConfigError(
                    f"@bus.every: {chosen!r} takes nothing, or a Firing (and what Depends(...) gives), not a "
                    f"{handler.signature.payload!r}: async def {chosen}(firing: Firing) -> None"
                )
            self.context.serdes.setdefault(Firing, Json(Firing))
            self._declare_handler(handler)
            if topic not in self.context.topics:
                self.topic(topic, partitions=1, configs=_FIRINGS_CONFIG)
            known[chosen] = table
            self._schedules.firings[chosen] = topic
            return handler

        return register

    def _is_worth(self, table: Timetable) -> Callable[[ConsumerRecord], bool]:
        def is_worth(record: ConsumerRecord) -> bool:
            try:
                firing = msgspec.json.decode(shallow(record.value or b""), type=Firing)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                # Another client wrote it. It must not count as a failure of the function, which could stop it
                # (on_error="stop").
                where = f"{record.topic}-{record.partition} offset {record.offset}"
                logger.warning("The record %s is ignored. It is not the time of a function: %s", where, error)
                return False
            return not table.is_over(firing.scheduled_ms, firing.next_ms, self.context.now_ms())

        return is_worth

    async def cancel_scheduled(
        self, id: str | Scheduled, *, timeout: Duration = 10.0, transactional: bool = True
    ) -> bool:
        """Cancel a record that was sent with a delay. Return False if it was delivered already, or does not exist.

        The process that delivers records decides, so the result is reliable. ``timeout`` is in seconds, or ``"5s"``, or
        a timedelta. Raises RequestTimedOut without an answer; the record is then cancelled unless it is delivered
        first. A function of ``@bus.every`` has the id ``"every:<name>"``; it returns with the next start of a service
        that declares it.

        In a handler with ``exactly_once=True`` it raises ConfigError like `EventBus.request`, because it waits for an
        answer. ``transactional=False`` cancels at once, outside of the handler's transaction.
        """
        if transactional:
            refuse_waiting("cancel_scheduled()")
        self._running("cancel_scheduled")
        return await self._schedules.cancel(id, seconds(timeout, f"cancel_scheduled(timeout={timeout!r})"))
