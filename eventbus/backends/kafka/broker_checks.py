"""Check brokers that do not answer, and log each outage once when it begins and once when it ends.

Each client's threads report each broker repeatedly. A report only triggers a check of the broker, with our own
connection.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import anyio
from confluent_kafka import KafkaError as ClientError

from eventbus.backends.clock import Timers
from eventbus.backends.kafka.client_statistics import LatestStatistics
from eventbus.backends.kafka.settings import ClientSettings, Listener
from eventbus.backends.kafka.threads import Loop
from eventbus.backends.kafka.wire import Address, Connection
from eventbus.errors import ConfigError, EventBusError

logger = logging.getLogger("eventbus.kafka")

_LOOK_SECONDS = 1.0
"""The interval at which unreachable brokers are checked; a broker that returns within it counts as reachable."""
_ANSWER_SECONDS = 2.0
_REFUSALS = frozenset((ClientError._AUTHENTICATION, ClientError._SSL))
_REPEAT_SECONDS = 60.0
_ADDRESS = re.compile(r"([\w.-]+|\[[0-9a-fA-F:]+\]):(\d+)[/:]")
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class BrokerChecks:
    """The brokers of one backend, and the reports and statistics of its clients."""

    def __init__(self, settings: ClientSettings, timers: Timers) -> None:
        self._settings = settings
        self._timers = timers
        self._name = f"kafka://{settings.bootstrap}"
        self.statistics = LatestStatistics(time.monotonic, 3 * settings.statistics_seconds + 1)
        self.listener = Listener(self._on_error, self.statistics.store)
        self._brokers: dict[Address, int] = {}
        """The brokers in the cluster's latest metadata."""
        self._suspects: set[Address] = set()
        self._all_are_suspect = False
        self._away: dict[Address, float] = {}
        """When each unreachable broker was found."""
        self._why = ""
        self._reported: set[Address] = set()
        self._refused: dict[str, float] = {}
        """Texts of refusals, with the time when they were logged."""
        self._loop: Loop | None = None
        self._reported_error = anyio.Event()

    def start(self) -> None:
        """Prepare in the event loop in which `run` will be called."""
        self._loop = Loop()
        self._reported_error = anyio.Event()
        self._suspects.clear()
        self._away.clear()
        self._reported.clear()
        self._all_are_suspect = False

    def set_brokers(self, brokers: Mapping[int, Address]) -> None:
        """Set the brokers that the cluster has now."""
        self._brokers = {address: number for number, address in brokers.items()}

    @property
    def trouble(self) -> str:
        """A description of unreachable brokers; empty if all answer."""
        if not self._reported:
            return ""
        seconds = self._timers.current_time() - min(self._away[one] for one in self._reported)
        return f"{self._named(self._reported)} of {self._name} for {seconds:.0f} s: {self._why}"

    @property
    def is_out(self) -> bool:
        """True if no broker answers."""
        return bool(self._reported) and self._reported >= self._brokers.keys()

    # error reports of clients ----------------------------------------------------------------------------------------

    def _on_error(self, error: ClientError) -> None:
        """Handle an error report, in a thread of librdkafka."""
        logger.debug("librdkafka: %s", error.str())
        loop = self._loop
        if loop is not None:
            loop.tell(partial(self._suspect, error))

    def _suspect(self, error: ClientError) -> None:
        if error.code() in _REFUSALS:
            self._log_refusal(error.str())
        found = _ADDRESS.search(error.str())
        if found is not None:
            self._suspects.add((found[1].strip("[]"), int(found[2])))
        # librdkafka names no address in this report, so every broker is checked.
        self._all_are_suspect |= error.code() == ClientError._ALL_BROKERS_DOWN
        self._reported_error.set()

    def _log_refusal(self, text: str) -> None:
        """Log a refusal of credentials or certificates that were accepted before: a person must act."""
        now = time.monotonic()  # outside of any task, where the event loop's time cannot be read
        plain = _ADDRESS.sub("", text).partition(" (after ")[0]
        if now - self._refused.get(plain, -_REPEAT_SECONDS) >= _REPEAT_SECONDS:
            self._refused[plain] = now
            logger.error("%s lets this process in no more: %s", self._name, text)

    # checks ----------------------------------------------------------------------------------------------------------

    async def run(self, in_thread: InThread) -> None:
        """Check reported brokers until they answer; runs as a task of the backend."""
        while True:
            await self._reported_error.wait()
            self._reported_error = anyio.Event()
            while await self._check_suspects(in_thread):
                await self._timers.sleep(_LOOK_SECONDS)

    async def _check_suspects(self, in_thread: InThread) -> bool:
        """Check suspected brokers; return True if some are still unreachable."""
        asked = {*self._away} | (self._suspects & self._brokers.keys())
        if self._all_are_suspect:
            asked |= self._brokers.keys()
        self._suspects.clear()
        self._all_are_suspect = False
        answers: dict[Address, str] = {}

        async def ask(address: Address) -> None:
            answers[address] = await in_thread(partial(self._why_away, address))

        async with anyio.create_task_group() as tasks:
            for address in asked:
                tasks.start_soon(ask, address)
        self._judge(answers)
        return bool(self._away)

    def _why_away(self, address: Address) -> str:
        """Return the error of a broker, in a thread; empty if it answers."""
        try:
            Connection(address, self._settings, _ANSWER_SECONDS).close()
        except ConfigError:
            return ""  # it refuses us, so it is reachable
        except EventBusError as error:
            return str(error)
        return ""

    def _judge(self, answers: Mapping[Address, str]) -> None:
        now = self._timers.current_time()
        gone = {one for one, why in answers.items() if why}
        # A broker that answers one check counts as reachable. librdkafka reconnects automatically.
        back = {one: now - self._away.pop(one) for one in answers.keys() - gone if one in self._away}
        news = {one for one in gone & self._away.keys() if one not in self._reported}
        for one in gone:
            self._away.setdefault(one, now)
        if news:
            self._why = answers[min(news)]
            self._reported |= news
            rest = "its clients wait, and go on with the first that does" if self.is_out else "the others go on"
            logger.warning("%s of %s: %s; %s", self._named(news), self._name, self._why, rest)
        answering = back.keys() & self._reported
        if answering:
            self._reported -= answering
            seconds = max(back[one] for one in answering)
            logger.warning("%s: %s again after %.0f s", self._name, _listed(answering, "answer"), seconds)

    def _named(self, away: Iterable[Address]) -> str:
        away = set(away)
        if away >= self._brokers.keys():
            return "no broker answers"
        return _listed(away, "do not answer" if len(away) > 1 else "does not answer")


def _listed(addresses: Iterable[Address], verb: str) -> str:
    names = [f"{host}:{port}" for host, port in sorted(addresses)]
    if verb == "answer" and len(names) == 1:
        verb = "answers"
    return f"broker{'s' if len(names) > 1 else ''} {', '.join(names)} {verb}"
