"""The supervisor's hands: processes, the lines to them, signals, and the queue in which all that happens arrives."""

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
from eventbus.cli.running.line import LINE, NUMBER, Ask, Counts, Go, Loaded, Running, Stands, read_from_worker, write
from eventbus.cli.running.shared_log import SharedLog
from eventbus.cli.running.supervision import Supervision
from eventbus.cli.running.together import OfWorkers
from eventbus.cli.running.watching import forget_compiled, watch_files
from eventbus.client.metrics import Sample
from eventbus.client.running.signals import SIGNALS
from eventbus.client.threads import settle
from eventbus.errors import RequestTimedOut
from eventbus.web.probes import Standing

if TYPE_CHECKING:
    from eventbus.web.server import HealthServer

logger = logging.getLogger("eventbus.bus_run")

_LAST_LINES_SECONDS = 1.0
"""How long what a dead worker has said may take to be read."""


class Process:
    """One process of a worker, and our end of the line to it."""

    def __init__(self, worker: int, command: Sequence[str], *, is_alone: bool) -> None:
        self.worker = worker
        number = {} if is_alone else {NUMBER: str(worker)}
        self.line, theirs = socket.socketpair()
        with theirs:
            self.popen = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C goes to the terminal's whole group: to them it comes from us, once
                stdin=subprocess.DEVNULL,
                env={**os.environ, LINE: str(theirs.fileno()), **number},
            )
        self.has_begun = False
        """It was told where its log is: from then on it answers questions."""
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Any]] = {}
        self._numbers = 0

    def tell(self, message: Any) -> None:
        """A worker that is dead by now hears nothing; that it is dead is heard otherwise."""
        with self._lock, suppress(OSError):
            write(self.line, message)

    def ask(self, what: Any) -> Future[Any]:
        """From any thread. The future has no outcome where there is no answer."""
        future: Future[Any] = Future()
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._asked[number] = future
        future.add_done_callback(lambda _: self._asked.pop(number, None))
        self.tell(Ask(number, what))
        return future

    def answered(self, message: Stands | Counts) -> None:
        future = self._asked.get(message.number)
        if future is None:
            return
        if isinstance(message, Stands):
            settle(future, message.standing)
        elif message.samples is None:
            settle(future, error=RequestTimedOut("its bus does not answer"))
        else:
            settle(future, message.samples)


class Supervisor:
    """Runs workers until all is over. All that happens is put into one queue, and done in the main thread."""

    def __init__(self, command: Sequence[str], workers: int, reload_directories: Sequence[str] = ()) -> None:
        """``command``: of a worker. ``reload_directories``: start it again when files below them change."""
        self._command = command
        self._directories = reload_directories
        self._happened: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._processes: dict[int, Process] = {}
        self._log = SharedLog(lambda why: self._happened.put(lambda: self._machine.failed(why, time.monotonic())))
        self._shares = workers > 1
        self._machine = Supervision(self, workers, reload=bool(reload_directories))
        self._changed_at: float | None = None

    def run(self, health: HealthServer | None = None) -> int:
        """Return the exit code."""
        with ExitStack() as stack:
            if health is not None:
                stack.enter_context(health.around(OfWorkers(self._ask_standings, self._ask_samples)))
            stack.callback(self._log.close)
            stack.callback(self._end_all)
            stack.enter_context(self._signals())
            if self._directories:
                watch_files(self._directories, lambda files: self._happened.put(partial(self._changed, files)))
            self._machine.start(time.monotonic())
            while (code := self._machine.code) is None:
                at = self._machine.next_at()
                with suppress(queue.Empty):
                    self._happened.get(timeout=None if at is None else max(at - time.monotonic(), 0.0))()
                self._machine.passed(time.monotonic())
            return code

    @contextmanager
    def _signals(self) -> Generator[None]:
        def arrive(number: int, _: object) -> None:
            self._happened.put(lambda: self._machine.signalled(number, time.monotonic()))

        before = {number: signal.signal(number, arrive) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _end_all(self) -> None:
        """Only where something went wrong here is any of them left."""
        for process in self._processes.values():
            process.line.close()
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()

    # what the machine has done ----------------------------------------------------------------------------------------

    def spawn(self, worker: int) -> None:
        before = self._processes.get(worker)
        if before is not None:
            before.line.close()
        process = self._processes[worker] = Process(worker, self._command, is_alone=not self._shares)
        listener = threading.Thread(target=self._listen, args=(process,), daemon=True)
        listener.start()
        threading.Thread(target=self._wait, args=(process, listener), daemon=True).start()

    def signal(self, worker: int, number: Signals) -> None:
        self._processes[worker].popen.send_signal(number)

    def kill(self, worker: int) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(self._processes[worker].popen.pid, signal.SIGKILL)

    def say(self, text: str) -> None:
        logger.info("%s", text)

    # what happens -----------------------------------------------------------------------------------------------------

    def _listen(self, process: Process) -> None:
        with suppress(OSError, ValueError, msgspec.DecodeError), process.line.makefile("rb") as lines:
            for text in lines:
                message = read_from_worker(text)
                if isinstance(message, (Stands, Counts)):
                    process.answered(message)
                else:
                    self._happened.put(partial(self._heard, process, message))

    def _wait(self, process: Process, listener: threading.Thread) -> None:
        returncode = process.popen.wait()
        listener.join(_LAST_LINES_SECONDS)  # what it forked may hold the line
        self._happened.put(partial(self._exited, process, returncode))

    def _heard(self, process: Process, message: Loaded | Running) -> None:
        if self._processes[process.worker] is not process:
            return
        if isinstance(message, Running):
            self._machine.running(process.worker)
            self._say_how_long()
            return
        go = self._log.place(message) if self._shares else Go()
        if isinstance(go, Go):
            self._machine.loaded(process.worker, message.drain_seconds, time.monotonic())
            process.has_begun = True
        process.tell(go)

    def _say_how_long(self) -> None:
        if self._changed_at is not None:
            self.say(f"runs again, {time.monotonic() - self._changed_at:.2f} s after the change was seen")
            self._changed_at = None

    def _exited(self, process: Process, returncode: int) -> None:
        if self._processes[process.worker] is process:
            process.has_begun = False
            if not self._machine.slots[process.worker].is_stopping:
                self._changed_at = None
            self._machine.exited(process.worker, returncode, time.monotonic())

    def _changed(self, files: list[str]) -> None:
        forget_compiled(files)
        self._changed_at = self._changed_at or time.monotonic()
        self._machine.changed(files, time.monotonic())

    # health, in the threads of whoever asks ---------------------------------------------------------------------------

    def _ask_standings(self) -> dict[int, Future[Standing]]:
        return {
            worker: process.ask("standing") if process.has_begun else _settled(Standing(phase="starting"))
            for worker, process in sorted(self._processes.items())
        }

    def _ask_samples(self) -> dict[int, Future[list[Sample]]]:
        return {
            worker: process.ask("samples") for worker, process in sorted(self._processes.items()) if process.has_begun
        }


def _settled(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def check_system() -> None:
    """Raises UsageError where processes cannot be signalled."""
    if sys.platform == "win32":
        raise UsageError(
            "eventbus run: --workers and --reload need signals that Windows does not have: use WSL, or run the "
            "service without them, as often as you need it"
        )
