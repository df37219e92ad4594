"""The producers of a running bus: the one it sends with, those of producer functions, and those it was asked for."""

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
from eventbus.client.producing.last_words import LastWords
from eventbus.client.schemas import fetched
from eventbus.client.threads import Home
from eventbus.errors import BufferExhausted, SchemaNotReady
from serdes import Bytes, Serde
from serdes.choose import Serdes

if TYPE_CHECKING:
    from eventbus.client.scheduling.schedules import Schedules

_MOVER_MAX_BYTES = 100 * 1_048_576
"""What came from a topic goes to another, with headers added; how large it may be is for the topics to say."""
_MOVER_TIMEOUT_MS = 20_000
"""Its transactions are short; what a killed process left open must not keep the partition's next owner for long."""
_LEAST_SECONDS = 1.0
"""For closing, where handlers have no time at all to finish. A log that answers needs a fraction of it."""

_REPORT_AFTER_SECONDS = 5.0

logger = logging.getLogger("eventbus.producer")


class Producers:
    """Opens them when they are needed, with the bus's settings, and closes what is left."""

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
        """``config`` and ``interceptors``: what each producer has unless it says otherwise. ``spawn`` starts a task.
        ``schedules``: of the bus, where records for later are put by."""
        self._backend = backend
        self._clock = clock
        self._serdes = serdes
        self._config = config
        self._interceptors = interceptors
        self._spawn = spawn
        self.last_words = LastWords(backend.timers, drain_seconds)
        self._home = Home()
        self._own: dict[int | None, Producer] = {}
        """By the identity of their partitioner; None: the bus's."""
        self._of_functions: dict[ProducerFunction[..., Any, Any], Producer] = {}
        """Of those with settings, or serdes, of their own."""
        self._open: list[Producer] = []
        self._schedules = schedules

    def open(
        self,
        config: Mapping[str, Any],
        interceptors: Sequence[ProducerInterceptor] = (),
        serdes: Mapping[type, Serde] | None = None,
    ) -> Producer:
        """One more producer. Raises ConfigError, also in another thread than the bus's, where a first send ends up.

        ``serdes``: those that go before the bus's.
        """
        self._home.check("sending")
        settings = producer_settings({**self._config, **config})
        one = open_producer(
            self._backend.producer(settings.config),
            settings,
            self._clock,
            self._serdes.joined_with(serdes) if serdes else self._serdes,
            self._open.remove,
            self.last_words,
            (*self._interceptors, *interceptors),
        )
        one.schedules, one.family = self._schedules, self
        self._open.append(one)
        self._spawn(one.run)
        return one

    @property
    def main(self) -> Producer:
        """What the bus itself sends with."""
        return self._own.get(None) or self._with_partitioner(None)

    def of(self, function: ProducerFunction[..., Any, Any]) -> Producer:
        """Whom a producer function sends with: one for all of a partitioner with nothing else of their own."""
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
        """How many are open."""
        return len(self._open)

    def transactional(self, handler: Handler[Any, Any], transactional_id: str) -> Producer:
        """The producer of one partition of an exactly-once handler."""
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
        """The producer of what becomes of one partition's failed records: bytes, as they were."""
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
        """Send an output of a handler; nothing for None. Its ack is awaited per fetch, not per record."""
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
        """Return when everything that was sent so far is stored or has failed."""
        for one in list(self._open):
            await one.flush()

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Closing, of producers and of what sends with them: they are given up when it takes longer, in real time.

        A transaction's end shields itself from being cancelled, for minutes where no broker answers.
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
        """Flush and close all of them."""
        async with anyio.create_task_group() as tasks:  # one that has to wait takes no time from the others
            for one in self._open:
                tasks.start_soon(one.aclose)


def _config_of(function: ProducerFunction[..., Any, Any]) -> dict[str, Any]:
    """What its producer has that the bus's has not."""
    spec = function.spec
    return {**spec.config, **({} if spec.partitioner is None else {"partitioner": spec.partitioner})}
