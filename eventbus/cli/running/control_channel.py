"""The protocol between a worker and its supervisor: one JSON object per line, over a private socket pair.

The worker reports what it has loaded and waits for the supervisor to name the log. After that it answers queries about
its bus. When the channel closes, the supervisor has died, and the worker stops as after SIGTERM.
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
from eventbus.cli.running.exit_codes import CUT_OFF
from eventbus.client.metrics import Sample
from eventbus.errors import RequestTimedOut
from eventbus.web.probes import Standing
from eventbus.web.sources import OfBus

if TYPE_CHECKING:
    from eventbus import EventBus

CHANNEL = "EVENTBUS_SUPERVISOR"
"""The environment variable with the file descriptor of the worker's end of the channel."""
WORKER_NUMBER = "EVENTBUS_WORKER"
"""The environment variable with the number of this worker, from 0. The service may read it too."""

_GRACE_SECONDS = 5.0
"""Added to the drain timeout: a worker without a supervisor exits by force after this time."""
_LAST_SECONDS = 1.0
"""The same if the supervisor served the log: nothing can be committed any more, so waiting is useless."""

LogKind = Literal["memory", "directory", "shared"]
"""``directory``: one process may open it. ``shared``: any number of processes, such as a cluster."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The worker has imported the service. The supervisor decides by its log how it starts."""

    url: str
    kind: LogKind
    drain_seconds: float
    settings: dict[str, Any] = {}
    """The settings of the log, for the process that opens it."""


class BusStarted(msgspec.Struct, frozen=True, tag=True):
    """The bus has started."""


class HealthAnswer(msgspec.Struct, frozen=True, tag=True):
    """The answer to the query ``standing`` with this number."""

    number: int
    standing: Standing


class MetricsAnswer(msgspec.Struct, frozen=True, tag=True):
    """The answer to the query ``samples`` with this number; None if the bus has not answered in time."""

    number: int
    samples: list[Sample] | None


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start the bus on the log ``url``, or on its own log if that is empty."""

    url: str = ""
    settings: dict[str, str] = {}


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Do not start the bus, and exit with this message."""

    why: str


class Query(msgspec.Struct, frozen=True, tag=True):
    """Request the health (``standing``) or the metrics (``samples``) of the bus."""

    number: int
    what: Literal["standing", "samples"]


FromWorker = Loaded | BusStarted | HealthAnswer | MetricsAnswer
ToWorker = Start | Refused | Query

_from_worker = msgspec.json.Decoder(FromWorker)
_to_worker = msgspec.json.Decoder(ToWorker)
_encoder = msgspec.json.Encoder(enc_hook=repr)


def write(channel: socket.socket, message: FromWorker | ToWorker) -> None:
    """Send a message. Raises OSError if the other process has exited."""
    channel.sendall(_encoder.encode(message) + b"\n")


def read_from_worker(text: bytes) -> FromWorker:
    return _from_worker.decode(text)


class WorkerChannel:
    """The worker's end of the channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lines = channel.makefile("rb")
        self._lock = threading.Lock()
        self._bus: EventBus | None = None
        self._source: OfBus | None = None
        self._answer_to_load: Start | Refused | None = None
        self._is_answered = threading.Event()
        threading.Thread(target=self._listen, name="supervisor channel", daemon=True).start()

    @staticmethod
    def of_environment() -> WorkerChannel | None:
        """Return the channel if a supervisor started this process. Child processes do not inherit it."""
        number = os.environ.pop(CHANNEL, None)
        if number is None:
            return None
        os.set_inheritable(int(number), False)
        return WorkerChannel(socket.socket(fileno=int(number)))

    def begin(self, bus: EventBus) -> Start:
        """Report what was loaded and wait for the order to start. Raises UsageError if the supervisor refuses."""
        self._bus, self._source = bus, OfBus(bus, is_coming=True)
        settings = dict(log_settings(bus.context.log_settings))
        self._write(Loaded(bus.url, kind_of_log(bus), bus.context.drain_timeout_ms / 1000, settings))
        self._is_answered.wait()
        if isinstance(self._answer_to_load, Refused):
            raise UsageError(self._answer_to_load.why)
        return self._answer_to_load or Start()

    @property
    def prefix(self) -> str:
        """The prefix of log lines on a terminal that several workers share."""
        number = os.environ.get(WORKER_NUMBER)
        return "" if number is None else f"worker {number}: "

    @contextmanager
    def placed(self, bus: EventBus) -> Generator[None]:
        """Put the bus on the log that the supervisor names, while the block runs."""
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
        """Report that the bus has started."""
        self._write(BusStarted())

    def _write(self, message: FromWorker) -> None:
        with self._lock, suppress(OSError):  # a dead supervisor is noticed by `_listen`
            write(self._channel, message)

    def _listen(self) -> None:
        try:
            with asyncio.Runner() as runner:
                for text in self._lines:
                    if not text.endswith(b"\n"):  # the supervisor was killed in the middle of a message
                        break
                    message = _to_worker.decode(text)
                    if isinstance(message, Query):
                        self._answer(message, runner)
                    else:
                        self._answer_to_load = message
                        self._is_answered.set()
        except ConnectionResetError:
            pass  # the supervisor was killed with a message of this worker unread: Linux resets the connection then
        finally:
            self._stop_orphan()  # also after an error: without a supervisor, nothing would ever end this process

    def _stop_orphan(self) -> None:
        """Stop gracefully, then exit by force: no other process would kill this one if it hangs."""
        bus, seconds = self._bus, _GRACE_SECONDS
        if bus is not None and isinstance(self._answer_to_load, Start) and self._answer_to_load.url:
            bus.context.drain_timeout_ms = 0
            seconds = _LAST_SECONDS
        os.kill(os.getpid(), signal.SIGTERM)
        self._is_answered.set()
        threading.Event().wait(seconds + (0.0 if bus is None else bus.context.drain_timeout_ms / 1000))
        os._exit(CUT_OFF)

    def _answer(self, question: Query, runner: asyncio.Runner) -> None:
        source = self._source
        if source is None:
            return
        if question.what == "standing":
            self._write(HealthAnswer(question.number, runner.run(source.standing())))
            return
        try:
            self._write(MetricsAnswer(question.number, list(runner.run(source.samples()))))
        except RequestTimedOut:
            self._write(MetricsAnswer(question.number, None))


def kind_of_log(bus: EventBus) -> LogKind:
    """Return how many processes may open the log of a bus."""
    from eventbus.backends.embedded import EmbeddedBackend

    if not isinstance(bus.context.backend, EmbeddedBackend):
        return "shared"
    return "directory" if bus.context.backend.url.startswith("file://") else "memory"


def log_settings(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the log itself, without those of Kafka clients."""
    from eventbus.broker import BrokerConfig

    return {key: value for key, value in settings.items() if key in BrokerConfig.__struct_fields__}
