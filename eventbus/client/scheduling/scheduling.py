"""`cancel_scheduled` and ``@bus.every``, for the bus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from eventbus.client import handling, scheduling
from eventbus.durations import Duration, seconds

if TYPE_CHECKING:
    from eventbus.client.handling.handlers import ConsumerDecorator, Handler
    from eventbus.client.host import Context
    from eventbus.client.keywords import ScheduleOptions
    from eventbus.client.scheduling.schedules import Schedules
    from eventbus.client.scheduling.times import Scheduled
    from eventbus.client.scheduling.timetable import Missed

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
        table = scheduling.table_of(when, timezone, missed, options)
        frame = handling.calling_frame()

        def register(function: Callable[..., Any]) -> Handler[..., Any]:
            schedules = self._schedules
            handler = scheduling.timed_handler(self.context, schedules, function, table, options, name, frame)
            self._declare_handler(handler)
            [topic] = handler.spec.topics
            if topic not in self.context.topics:
                self.topic(topic, partitions=1, configs=_FIRINGS_CONFIG)
            schedules.functions[handler.__name__] = table
            schedules.firings[handler.__name__] = topic
            return handler

        return register

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
        self._running("cancel_scheduled")
        limit = seconds(timeout, f"cancel_scheduled(timeout={timeout!r})")
        return await self._schedules.cancel(id, limit, transactional=transactional)
