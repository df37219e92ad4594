"""Run the worker processes of a service: spawn and signal them, and pass all events to `Supervision` in one thread."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.cli.parser import UsageError
from eventbus.cli.running.aggregation import WorkersSource
from eventbus.cli.running.control_channel import (
    CHANNEL,
    WORKER_NUMBER,
    BusStarted,
    HealthAnswer,
    Loaded,
    MetricsAnswer,
    Query,
    Start,
    read_from_worker,
    write,
)
from eventbus.cli.running.file_changes import forget_compiled, watch_files
from eventbus.cli.running.shared_log import SharedLog
from eventbus.cli.running.supervision import Supervision
from eventbus.client.metrics import Sample
from eventbus.client.running.signals import SIGNALS
from eventbus.client.threads import settle
from eventbus.errors import RequestTimedOut
from eventbus.web.probes import Standing

if TYPE_CHECKING:
    from eventbus.web.server import HealthServer

logger = logging.getLogger("eventbus.bus_run")

_LAST_LINES_SECONDS = 1.0
"""The time to read the last messages of a worker that has exited."""


class WorkerProcess:
    """One process of a worker, and the supervisor's end of its channel."""

    def __init__(self, worker: int, command: Sequence[str], *, is_alone: bool) -> None:
        self.worker = worker
        number = {} if is_alone else {WORKER_NUMBER: str(worker)}
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.popen = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # else Ctrl-C, which goes to the whole foreground group, would reach each worker twice
                stdin=subprocess.DEVNULL,
                env={**os.environ, CHANNEL: str(theirs.fileno()), **number},
            )
        self.is_placed = False
        """True once the worker has its log. It answers queries only after that."""
        self._lock = threading.Lock()
        self._queries: dict[int, Future[Any]] = {}
        self._numbers = 0

    def send(self, message: Any) -> None:
        """Send a message. A worker that has exited is noticed by the thread that waits for it."""
        with self._lock, suppress(OSError):
            write(self.channel, message)

    def query(self, what: Any) -> Future[Any]:
        """Send a query, from any thread. The future stays open if the worker does not answer."""
        future: Future[Any] = Future()
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._queries[number] = future
        future.add_done_callback(lambda _: self._queries.pop(number, None))
        self.send(Query(number, what))
        return future

    def answered(self, message: HealthAnswer | MetricsAnswer) -> None:
        future = self._queries.get(message.number)
        if future is None:
            return
        if isinstance(message, HealthAnswer):
            settle(future, message.standing)
        elif message.samples is None:
            settle(future, error=RequestTimedOut("its bus does not answer"))
        else:
            settle(future, message.samples)


class Supervisor:
    """Runs workers until all have ended. Events of all threads go through one queue to the main thread."""

    def __init__(self, command: Sequence[str], workers: int, reload_directories: Sequence[str] = ()) -> None:
        """``command`` starts a worker. Changed files below ``reload_directories`` restart it."""
        self._command = command
        self._directories = reload_directories
        self._events: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._processes: dict[int, WorkerProcess] = {}
        self._log = SharedLog(lambda why: self._events.put(lambda: self._machine.failed(why, time.monotonic())))
        self._shares = workers > 1
        self._machine = Supervision(self, workers, reload=bool(reload_directories))
        self._changed_at: float | None = None

    def run(self, health: HealthServer | None = None) -> int:
        """Run the workers until they end. Return the exit code."""
        with ExitStack() as stack:
            if health is not None:
                stack.enter_context(health.around(WorkersSource(self._ask_standings, self._ask_samples)))
            stack.callback(self._log.close)
            stack.callback(self._end_all)
            stack.enter_context(self._signals())
            if self._directories:
                watch_files(self._directories, lambda files: self._events.put(partial(self._changed, files)))
            self._machine.start(time.monotonic())
            while (code := self._machine.code) is None:
                at = self._machine.next_at()
                with suppress(queue.Empty):
                    self._events.get(timeout=None if at is None else max(at - time.monotonic(), 0.0))()
                self._machine.passed(time.monotonic())
            return code

    @contextmanager
    def _signals(self) -> Generator[None]:
        def arrive(number: int, _: object) -> None:
            self._events.put(lambda: self._machine.signalled(number, time.monotonic()))

        before = {number: signal.signal(number, arrive) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end_all(self) -> None:
        """Kill workers that are left, which happens only after an error in the supervisor."""
        for process in self._processes.values():
            process.channel.close()
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()

    # actions of the machine -------------------------------------------------------------------------------------------

    def spawn(self, worker: int) -> None:
        before = self._processes.get(worker)
        if before is not None:
            before.channel.close()
        process = self._processes[worker] = WorkerProcess(worker, self._command, is_alone=not self._shares)
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        threading.Thread(target=self._wait, args=(process, listener), daemon=True).start()

    def signal(self, worker: int, number: Signals) -> None:
        self._processes[worker].popen.send_signal(number)

    def kill(self, worker: int) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(self._processes[worker].popen.pid, signal.SIGKILL)

    def log(self, text: str) -> None:
        logger.info("%s", text)

    # events -----------------------------------------------------------------------------------------------------------

    def _listen(self, process: WorkerProcess) -> None:
        with suppress(OSError, ValueError, msgspec.DecodeError), process.channel.makefile("rb") as lines:
            for text in lines:
                message = read_from_worker(text)
                if isinstance(message, (HealthAnswer, MetricsAnswer)):
                    process.answered(message)
                else:
                    self._events.put(partial(self._received, process, message))

    def _wait(self, process: WorkerProcess, listener: threading.Thread) -> None:
        returncode = process.popen.wait()
        listener.join(_LAST_LINES_SECONDS)  # a process that it forked may keep the channel open
        self._events.put(partial(self._exited, process, returncode))

    def _received(self, process: WorkerProcess, message: Loaded | BusStarted) -> None:
        if self._processes[process.worker] is not process:
            return
        if isinstance(message, BusStarted):
            self._machine.running(process.worker)
            self._log_restart_time()
            return
        go = self._log.place(message) if self._shares else Start()
        if isinstance(go, Start):
            self._machine.loaded(process.worker, message.drain_seconds, time.monotonic())
            process.is_placed = True
        process.send(go)

    def _log_restart_time(self) -> None:
        if self._changed_at is not None:
            self.log(f"runs again, {time.monotonic() - self._changed_at:.2f} s after the change was seen")
            self._changed_at = None

    def _exited(self, process: WorkerProcess, returncode: int) -> None:
        if self._processes[process.worker] is process:
            process.is_placed = False
            if not self._machine.slots[process.worker].is_stopping:
                self._changed_at = None
            self._machine.exited(process.worker, returncode, time.monotonic())

    def _changed(self, files: list[str]) -> None:
        forget_compiled(files)
        self._changed_at = self._changed_at or time.monotonic()
        self._machine.changed(files, time.monotonic())

    # health, in the threads of the callers ----------------------------------------------------------------------------

    def _ask_standings(self) -> dict[int, Future[Standing]]:
        return {
            worker: process.query("standing") if process.is_placed else _settled(Standing(phase="starting"))
            for worker, process in sorted(self._processes.items())
        }

    def _ask_samples(self) -> dict[int, Future[list[Sample]]]:
        return {
            worker: process.query("samples") for worker, process in sorted(self._processes.items()) if process.is_placed
        }


def _settled(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def check_system() -> None:
    """Raise UsageError on systems where processes cannot be signalled."""
    if sys.platform == "win32":
        raise UsageError(
            "eventbus run: --workers and --reload need signals that Windows does not have: use WSL, or run the "
            "service without them, as often as you need it"
        )
