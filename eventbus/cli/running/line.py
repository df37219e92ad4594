"""What a worker and its supervisor tell each other, over a socket that only they have: one JSON object a line.

The worker says what it has loaded and waits to be told where the log is; then it answers questions about its bus. When
the line breaks, the supervisor is dead, whatever killed it, and the worker stops as by SIGTERM.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from eventbus.cli.parser import UsageError
from eventbus.cli.running.codes import CUT_OFF
from eventbus.client.metrics import Sample
from eventbus.errors import RequestTimedOut
from eventbus.web.probes import Standing
from eventbus.web.sources import OfBus

if TYPE_CHECKING:
    from eventbus import EventBus

LINE = "EVENTBUS_SUPERVISOR"
"""The environment's: a worker's end of the line, as a file descriptor."""
NUMBER = "EVENTBUS_WORKER"
"""The environment's, for the service too: which one of several workers this is, from 0 on."""

_GRACE_SECONDS = 5.0
"""On top of the drain timeout, for a worker without a supervisor to end."""
_LAST_SECONDS = 1.0
"""The same where the log has died with the supervisor: what is finished now cannot be committed any more."""

LogKind = Literal["memory", "directory", "shared"]
"""``directory``: one process may have it; ``shared``: any number, as a cluster."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The service is imported; what follows depends on its log."""

    url: str
    kind: LogKind
    drain_seconds: float
    settings: dict[str, Any] = {}
    """Of the log, for whoever opens it."""


class Running(msgspec.Struct, frozen=True, tag=True):
    """The bus has started."""


class Stands(msgspec.Struct, frozen=True, tag=True):
    """The answer to a question of this number."""

    number: int
    standing: Standing


class Counts(msgspec.Struct, frozen=True, tag=True):
    """The answer to a question of this number; None: the bus has not answered."""

    number: int
    samples: list[Sample] | None


class Go(msgspec.Struct, frozen=True, tag=True):
    """Start the bus. ``url``: on that log; empty: on its own."""

    url: str = ""
    settings: dict[str, str] = {}


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Do not start it."""

    why: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """How the bus stands, or what it counts."""

    number: int
    what: Literal["standing", "samples"]


FromWorker = Loaded | Running | Stands | Counts
ToWorker = Go | Refused | Ask

_from_worker = msgspec.json.Decoder(FromWorker)
_to_worker = msgspec.json.Decoder(ToWorker)
_encoder = msgspec.json.Encoder(enc_hook=repr)


def write(line: socket.socket, message: FromWorker | ToWorker) -> None:
    """Raises OSError when nobody is at the other end."""
    line.sendall(_encoder.encode(message) + b"\n")


def read_from_worker(text: bytes) -> FromWorker:
    return _from_worker.decode(text)


class Worker:
    """The worker's end."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lines = line.makefile("rb")
        self._lock = threading.Lock()
        self._bus: EventBus | None = None
        self._source: OfBus | None = None
        self._told: Go | Refused | None = None
        self._is_told = threading.Event()
        threading.Thread(target=self._listen, name="line to the supervisor", daemon=True).start()

    @staticmethod
    def of_environment() -> Worker | None:
        """Where a supervisor has started this process; its own children are not to find the line."""
        number = os.environ.pop(LINE, None)
        if number is None:
            return None
        os.set_inheritable(int(number), False)
        return Worker(socket.socket(fileno=int(number)))

    def begin(self, bus: EventBus) -> Go:
        """Say what was loaded, and return where to start it. Raises UsageError: it cannot be."""
        self._bus, self._source = bus, OfBus(bus, is_coming=True)
        settings = dict(log_settings(bus.context.log_settings))
        self._write(Loaded(bus.url, kind_of_log(bus), bus.context.drain_timeout_ms / 1000, settings))
        self._is_told.wait()
        if isinstance(self._told, Refused):
            raise UsageError(self._told.why)
        return self._told or Go()

    @property
    def prefix(self) -> str:
        """Of what it says on a terminal that it may share with others."""
        number = os.environ.get(NUMBER)
        return "" if number is None else f"worker {number}: "

    @contextmanager
    def placed(self, bus: EventBus) -> Generator[None]:
        """While inside, the bus is on the log that the supervisor names."""
        go = self.begin(bus)
        if not go.url:
            yield
            return
        from eventbus.backends.urls import open_backend, system_clock

        config = {key: value for key, value in bus.context.log_settings.items() if key == "auto_create_topics"}
        backend = open_backend(go.url, {**config, **go.settings}, system_clock)
        with bus.context.on_backend(backend, system_clock):
            yield

    def running(self) -> None:
        """The bus has started."""
        self._write(Running())

    def _write(self, message: FromWorker) -> None:
        with self._lock, suppress(OSError):  # a dead supervisor is noticed by `_listen`
            write(self._line, message)

    def _listen(self) -> None:
        try:
            with asyncio.Runner() as runner:
                for text in self._lines:
                    if not text.endswith(b"\n"):  # the supervisor was killed in the middle of a message
                        break
                    message = _to_worker.decode(text)
                    if isinstance(message, Ask):
                        self._answer(message, runner)
                    else:
                        self._told = message
                        self._is_told.set()
        except ConnectionResetError:
            pass  # the supervisor was killed with a message of this worker unread: Linux resets the connection then
        finally:
            self._orphaned()  # whatever ended the loop: without a supervisor, this process would run for ever

    def _orphaned(self) -> None:
        """Stop in order, but surely: nobody else would end a process that hangs."""
        bus, seconds = self._bus, _GRACE_SECONDS
        if bus is not None and isinstance(self._told, Go) and self._told.url:
            bus.context.drain_timeout_ms = 0
            seconds = _LAST_SECONDS
        os.kill(os.getpid(), signal.SIGTERM)
        self._is_told.set()
        threading.Event().wait(seconds + (0.0 if bus is None else bus.context.drain_timeout_ms / 1000))
        os._exit(CUT_OFF)

    def _answer(self, question: Ask, runner: asyncio.Runner) -> None:
        source = self._source
        if source is None:
            return
        if question.what == "standing":
            self._write(Stands(question.number, runner.run(source.standing())))
            return
        try:
            self._write(Counts(question.number, list(runner.run(source.samples()))))
        except RequestTimedOut:
            self._write(Counts(question.number, None))


def kind_of_log(bus: EventBus) -> LogKind:
    """How many processes may have it."""
    from eventbus.backends.embedded import EmbeddedBackend

    if not isinstance(bus.context.backend, EmbeddedBackend):
        return "shared"
    return "directory" if bus.context.backend.url.startswith("file://") else "memory"


def log_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without what only a Kafka's clients are told."""
    from eventbus.broker import BrokerConfig

    return {key: value for key, value in settings.items() if key in BrokerConfig.__struct_fields__}
