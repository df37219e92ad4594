"""Which worker runs, which is started again and when, and when all is over: a machine without processes or clocks.

Two ways of life. ``workers``: one that dies is started again, with a growing pause, until it dies too often.
``reload``: one worker, started again when files have changed; when it ends by itself, the next change is waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from signal import Signals
from typing import Literal, Protocol

from eventbus.cli.running.exit_codes import CUT_OFF, FAILURE, STOPPED, by_signal, of_process, worst

FAST_SECONDS = 10.0
"""A worker that dies sooner than that after its start has died fast."""
MOST_FAST_FAILURES = 5
"""One after the other, of one worker: then it makes no sense to go on."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
GRACE_SECONDS = 10.0
"""On top of its drain timeout: then a worker that was told to stop is killed."""
_AT_ONCE_SECONDS = 5.0
"""The same after a second signal."""

State = Literal["waiting", "loading", "starting", "running", "stopping", "ended"]


class Actions(Protocol):
    """What the machine has done."""

    def spawn(self, worker: int) -> None: ...

    def signal(self, worker: int, number: Signals) -> None: ...

    def kill(self, worker: int) -> None: ...

    def log(self, text: str) -> None: ...


class Slot:
    """One of the workers, over all the processes it has been."""

    def __init__(self) -> None:
        self.state: State = "waiting"
        """``waiting``: for its time, or for a change; ``loading``: it imports the service."""
        self.started_at = 0.0
        self.start_at: float | None = None
        """When it is started again; None: not by time."""
        self.kill_at: float | None = None
        self.fast_failures = 0
        self.code = STOPPED
        """Of its last end."""
        self.drain_seconds = 30.0
        self.is_killed = False

    @property
    def is_stopping(self) -> bool:
        """It was told to."""
        return self.state == "stopping"

    @property
    def is_alive(self) -> bool:
        return self.state in ("loading", "starting", "running", "stopping")


class Supervision:
    """Times are seconds of a steady clock, given with what happens."""

    def __init__(self, actions: Actions, workers: int = 1, *, reload: bool = False) -> None:
        self._actions = actions
        self._reload = reload
        self.slots = [Slot() for _ in range(workers)]
        self._signals = 0
        self._signal = 0
        self._gave_up: int | None = None
        self._is_over = False
        """No worker is started any more."""
        self._has_loaded = False
        """The service could be imported once: from then on what fails may be a passing thing."""

    @property
    def code(self) -> int | None:
        """The exit code; None: it is not over yet."""
        if not self._is_over or any(slot.is_alive for slot in self.slots):
            return None
        if self._gave_up is not None:
            return self._gave_up
        codes = [slot.code for slot in self.slots]
        return by_signal(self._signal) if self._signals > 1 else worst(codes)

    def start(self, now: float) -> None:
        """The first worker alone: what is wrong with the service is to be told once."""
        self._spawn(0, now)

    def _spawn(self, worker: int, now: float) -> None:
        slot = self.slots[worker]
        slot.state, slot.started_at, slot.start_at, slot.kill_at = "loading", now, None, None
        slot.code, slot.is_killed = STOPPED, False
        self._actions.spawn(worker)

    # what workers tell ------------------------------------------------------------------------------------------------

    def loaded(self, worker: int, drain_seconds: float, now: float) -> None:
        """It has imported the service, and is about to start it."""
        slot = self.slots[worker]
        slot.drain_seconds = drain_seconds
        if slot.state == "loading":
            slot.state = "starting"
        if not self._has_loaded:
            self._has_loaded = True
            for other, each in enumerate(self.slots):
                if each.state == "waiting" and not self._is_over:
                    self._spawn(other, now)

    def running(self, worker: int) -> None:
        """Its bus has started."""
        if self.slots[worker].state == "starting":
            self.slots[worker].state = "running"

    def exited(self, worker: int, returncode: int, now: float) -> None:
        slot = self.slots[worker]
        was, slot.code = slot.state, CUT_OFF if slot.is_killed else of_process(returncode)
        slot.state, slot.kill_at = "ended", None
        if self._is_over:
            return
        if self._reload:
            slot.state = "waiting"
            if was == "stopping":
                self._spawn(worker, now)
            else:
                self._actions.log(f"the service has ended ({_how(returncode)}); waiting for a change of its files")
        elif slot.code == STOPPED:
            self._actions.log(f"worker {worker} has ended by itself, and is not started again")
            self._is_over = not any(each.is_alive or each.state == "waiting" for each in self.slots)
        elif not self._has_loaded:  # it has said why
            self._give_up(slot.code, now)
        else:
            self._after_failure(worker, returncode, now)

    def _after_failure(self, worker: int, returncode: int, now: float) -> None:
        slot = self.slots[worker]
        is_fast = now - slot.started_at < FAST_SECONDS
        slot.fast_failures = slot.fast_failures + 1 if is_fast else 0
        if slot.fast_failures >= MOST_FAST_FAILURES:
            self._actions.log(
                f"worker {worker} has ended ({_how(returncode)}) for the {slot.fast_failures}th time within "
                f"{FAST_SECONDS:g} s of its start: giving up"
            )
            self._give_up(slot.code, now)
            return
        pause = min(FIRST_PAUSE_SECONDS * 2 ** max(slot.fast_failures - 1, 0), LONGEST_PAUSE_SECONDS)
        slot.state, slot.start_at = "waiting", now + pause
        self._actions.log(f"worker {worker} has ended ({_how(returncode)}); it is started again in {pause:g} s")

    # what happens -----------------------------------------------------------------------------------------------------

    def changed(self, files: Sequence[str], now: float) -> None:
        """Of the service's files; only for ``reload``."""
        slot = self.slots[0]
        if self._is_over or slot.is_stopping:  # what comes next reads what is there then
            return
        self._actions.log(f"changed: {_listed(files)}; starting again")
        if slot.is_alive:
            self._stop(0, Signals.SIGTERM, now)
        else:
            self._spawn(0, now)

    def signalled(self, number: int, now: float) -> None:
        """SIGINT or SIGTERM: the first is passed on, a second one too, and ends all; a third one kills."""
        self._signals += 1
        self._signal = number
        self._is_over = True
        if self._signals == 1:
            self._actions.log(f"{Signals(number).name}: stopping; a second signal stops at once")
            for worker, slot in enumerate(self.slots):
                # One that is being stopped has had its signal: another one would cut its records off.
                if slot.is_alive and not slot.is_stopping:
                    self._stop(worker, Signals(number), now)
        elif self._signals == 2:
            for worker in self._alive():
                self._actions.signal(worker, Signals(number))
                self.slots[worker].kill_at = now + _AT_ONCE_SECONDS
        else:
            for worker in self._alive():
                self._kill(worker)

    def failed(self, why: str, now: float) -> None:
        """What the workers need is gone."""
        self._actions.log(why)
        self._give_up(FAILURE, now)

    def _give_up(self, code: int, now: float) -> None:
        self._is_over = True
        if self._gave_up is None:
            self._gave_up = code
        for worker, slot in enumerate(self.slots):
            if slot.is_alive and not slot.is_stopping:
                self._stop(worker, Signals.SIGTERM, now)

    def _stop(self, worker: int, number: Signals, now: float) -> None:
        slot = self.slots[worker]
        slot.state, slot.kill_at = "stopping", now + slot.drain_seconds + GRACE_SECONDS
        self._actions.signal(worker, number)

    def _kill(self, worker: int) -> None:
        slot = self.slots[worker]
        slot.kill_at, slot.is_killed = None, True
        self._actions.kill(worker)

    def _alive(self) -> Collection[int]:
        return [worker for worker, slot in enumerate(self.slots) if slot.is_alive]

    # time -------------------------------------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """When `passed` has something to do; None: only when something happens."""
        times = [at for slot in self.slots for at in (slot.kill_at, self._start_at(slot)) if at is not None]
        return min(times, default=None)

    def _start_at(self, slot: Slot) -> float | None:
        return None if self._is_over else slot.start_at

    def passed(self, now: float) -> None:
        """Time has."""
        for worker, slot in enumerate(self.slots):
            start_at = self._start_at(slot)
            if start_at is not None and start_at <= now:
                self._spawn(worker, now)
            if slot.kill_at is not None and slot.kill_at <= now:
                self._actions.log(f"worker {worker} does not stop: killed")
                self._kill(worker)


def _how(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return Signals(-returncode).name
    except ValueError:  # a real-time signal
        return f"signal {-returncode}"


def _listed(files: Sequence[str]) -> str:
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return ", ".join(files[:3]) + more
