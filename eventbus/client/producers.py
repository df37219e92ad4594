"""The producers of a running bus: its own, those of producer functions, and those opened by the user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from eventbus.backends.base import Backend
from eventbus.backends.clock import Clock, RealTimers
from eventbus.backends.delivery import Delivery
from eventbus.client.config import producer_settings
from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.client.intercepted import InterceptedProducer, open_producer
from eventbus.client.interceptors import ProducerInterceptor
from eventbus.client.producer import Producer
from eventbus.client.producing.shutdown_work import ShutdownWork
from eventbus.client.schemas import fetched
from eventbus.client.threads import Home
from eventbus.errors import BufferExhausted, SchemaNotReady
from serdes import Bytes, Serde
from serdes.choose import Serdes

if TYPE_CHECKING:
    from eventbus.client.scheduling.schedules import Schedules

_MOVER_MAX_BYTES = 100 * 1_048_576
"""High enough for every forwarded record, which gets further headers. The topics limit the size.
"""
_MOVER_TIMEOUT_MS = 20_000
"""Its transactions are short. The open transaction of a killed process must not delay the partition's next owner."""
_LEAST_SECONDS = 1.0
"""Minimum time for closing, even if handlers get no time to finish. A log that answers needs a fraction of it."""

_REPORT_AFTER_SECONDS = 5.0

logger = logging.getLogger("eventbus.producer")


class Producers:
    """Opens producers on demand with the bus's settings, and closes those left open."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        serdes: Serdes,
        config: Mapping[str, Any],
        interceptors: Sequence[ProducerInterceptor],
        spawn: Callable[..., object],
        drain_seconds: float,
        schedules: Schedules,
    ) -> None:
        """``config`` and ``interceptors`` apply to each producer unless it overrides them. ``spawn`` starts a task.

        ``schedules`` are those of the bus, which store delayed records.
        """
        self._backend = backend
        self._clock = clock
        self._serdes = serdes
        self._config = config
        self._interceptors = interceptors
        self._spawn = spawn
        self.shutdown_work = ShutdownWork(backend.timers, drain_seconds)
        self._home = Home()
        self._own: dict[int | None, Producer] = {}
        """Producers by identity of their partitioner; None is the bus's own."""
        self._of_functions: dict[ProducerFunction[..., Any, Any], Producer] = {}
        """Producers of functions with separate settings or serdes."""
        self._open: list[Producer] = []
        self._schedules = schedules

    def open(
        self,
        config: Mapping[str, Any],
        interceptors: Sequence[ProducerInterceptor] = (),
        serdes: Mapping[type, Serde] | None = None,
    ) -> Producer:
        """Open a producer. Raises ConfigError, also if the first send of a function is in another thread than the
        bus's.

        ``serdes`` take precedence over those of the bus.
        """
        self._home.check("sending")
        settings = producer_settings({**self._config, **config})
        one = open_producer(
            self._backend.producer(settings.config),
            settings,
            self._clock,
            self._serdes.joined_with(serdes) if serdes else self._serdes,
            self._open.remove,
            self.shutdown_work,
            (*self._interceptors, *interceptors),
        )
        one.schedules, one.family = self._schedules, self
        self._open.append(one)
        self._spawn(one.run)
        return one

    @property
    def main(self) -> Producer:
        """The producer that the bus itself sends with."""
        return self._own.get(None) or self._with_partitioner(None)

    def of(self, function: ProducerFunction[..., Any, Any]) -> Producer:
        """Return the producer of a function. Functions that only set a partitioner share one per partitioner."""
        if function.spec.config or function.serdes:
            return self._of_functions.get(function) or self._of_its_own(function)
        partitioner = function.spec.partitioner
        return self._own.get(None if partitioner is None else id(partitioner)) or self._with_partitioner(partitioner)

    def _with_partitioner(self, partitioner: Any) -> Producer:
        one = self.open({} if partitioner is None else {"partitioner": partitioner})
        one.joins = True
        self._own[None if partitioner is None else id(partitioner)] = one
        return one

    def _of_its_own(self, function: ProducerFunction[..., Any, Any]) -> Producer:
        one = self._of_functions[function] = self.open(_config_of(function), serdes=function.serdes)
        one.joins = True
        return one

    def __len__(self) -> int:
        """Return the number of open producers."""
        return len(self._open)

    def transactional(self, handler: Handler[Any, Any], transactional_id: str) -> Producer:
        """Open the producer of one partition of an exactly-once handler."""
        return self.open(
            {
                **({} if handler.producer is None else _config_of(handler.producer)),
                "transactional_id": transactional_id,
                "transaction_timeout_ms": handler.spec.transaction_timeout_ms,
                "acks": "all",
                "enable_idempotence": True,
            },
            serdes=None if handler.producer is None else handler.producer.serdes,
        )

    def mover(self, transactional_id: str) -> Producer:
        """Open the producer that forwards one partition's failed records, as unchanged bytes."""
        return self.open(
            {
                "transactional_id": transactional_id,
                "transaction_timeout_ms": _MOVER_TIMEOUT_MS,
                "max_request_size": _MOVER_MAX_BYTES,
                "acks": "all",
                "enable_idempotence": True,
            },
            serdes={bytes: Bytes},
        )

    async def enqueue(self, function: ProducerFunction[..., Any, Any], value: Any) -> Delivery | None:
        """Send an output of a handler, unless it is None. Acks are awaited per fetch, not per record."""
        if value is None:
            return None
        spec = function.spec
        one = self.of(function)
        key = spec.key(value) if spec.key else None
        if isinstance(one, InterceptedProducer) and one.suspends:
            return await one.accepted(spec.topic, value, key=key)
        while True:
            try:
                return one.send_nowait(spec.topic, value, key=key)
            except BufferExhausted:
                await one.wait_for_room()
                return one.send_nowait(spec.topic, value, key=key)
            except SchemaNotReady as error:
                await fetched(error)

    async def flush(self) -> None:
        """Return when everything sent so far is stored or has failed."""
        for one in list(self._open):
            await one.flush()

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Limit the time for closing producers and what sends with them. After that, in real time, they are given up.

        The end of a transaction is shielded from cancellation, and could take minutes if no broker answers.
        """

        async def give_up() -> None:
            with in_time:
                limit = max(seconds, _LEAST_SECONDS)
                if limit > _REPORT_AFTER_SECONDS:
                    await RealTimers().sleep(_REPORT_AFTER_SECONDS)
                    names = ", ".join(sorted({one.name for one in self._open})) or "what sends with the bus's producers"
                    logger.warning(
                        "closing has waited for %g s, and waits up to %.0f s (drain_timeout_ms) for the log to answer: "
                        "%s", _REPORT_AFTER_SECONDS, limit, names,
                    )  # fmt: skip
                    limit -= _REPORT_AFTER_SECONDS
                await RealTimers().sleep(limit)
                for one in list(self._open):
                    one.give_up()

        in_time = anyio.CancelScope(shield=True)
        self._spawn(give_up)
        try:
            yield
        finally:
            in_time.cancel()

    async def aclose(self) -> None:
        """Flush and close all producers."""
        # concurrently, so that a slow producer does not delay the others
        async with anyio.create_task_group() as tasks:
            for one in self._open:
                tasks.start_soon(one.aclose)


def _config_of(function: ProducerFunction[..., Any, Any]) -> dict[str, Any]:
    """Return the settings in which a function's producer differs from the bus's."""
    spec = function.spec
    return {**spec.config, **({} if spec.partitioner is None else {"partitioner": spec.partitioner})}
