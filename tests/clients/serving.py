"""``eventbus serve`` as a process of its own, for clients that know nothing of Python."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from tests.warm import commands as warm

START_S = 30


class Served:
    """A server on a folder, on a free port of 127.0.0.1. Starts on entry and stops on exit, which must be clean."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.logs = folder
        """Where the segments are (``<topic>-<partition>/``)."""
        self.bootstrap = ""
        self.answer: dict[str, str] = {}
        """What it said when it was ready."""
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    @staticmethod
    def python() -> str:
        """Return the interpreter that is started."""
        return warm.python()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Returns when it accepts connections.

        Raises:
            RuntimeError: it ended, or said nothing for 30 s; with what it printed.
        """
        where = () if "--listener" in self._options else ("--port", "0")
        command = [self.python(), "-m", "eventbus", "serve", str(self.logs), "--json", *where, *self._options]
        # Not a pipe: nobody reads it while the server runs, and one that is full would stop it.
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._complaints, text=True)
        assert self._process.stdout
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if ready.select(START_S) else ""
        if not line:
            self._process.kill()
            raise RuntimeError(f"eventbus serve did not start: {self.said()}")
        self.answer = json.loads(line)
        self.bootstrap = self.answer["bootstrap"]

    def said(self) -> str:
        """Its standard error so far."""
        self._complaints.seek(0)
        return self._complaints.read()

    def stop(self) -> None:
        """SIGTERM, as an operator would.

        Raises:
            RuntimeError: it did not end with code 0 within 30 s, or printed a traceback at any time.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        assert process.stdout
        process.stdout.close()
        said = self.said()
        self._complaints.close()
        if code or "Traceback" in said:
            raise RuntimeError(f"eventbus serve ended with {code}: {said}")

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
