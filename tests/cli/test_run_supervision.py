"""Which worker runs, which is started again and when, and with which code all ends: the machine, without processes."""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

import pytest

from eventbus.cli.running.exit_codes import CUT_OFF, FAILURE, worst
from eventbus.cli.running.file_changes import forget_compiled
from eventbus.cli.running.supervision import GRACE_SECONDS, MOST_FAST_FAILURES, Supervision


class Actions:
    """Writes down what the machine has done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.said: list[str] = []

    def spawn(self, worker: int) -> None:
        self.done.append(f"spawn {worker}")

    def signal(self, worker: int, number: Signals) -> None:
        self.done.append(f"{number.name} {worker}")

    def kill(self, worker: int) -> None:
        self.done.append(f"kill {worker}")

    def log(self, text: str) -> None:
        self.said.append(text)

    def taken(self) -> list[str]:
        done, self.done = self.done, []
        return done


def running(workers: int, *, reload: bool = False) -> tuple[Supervision, Actions]:
    """All workers run, since the time 0; they have 30 s to drain."""
    actions = Actions()
    machine = Supervision(actions, workers, reload=reload)
    machine.start(0.0)
    for worker in range(workers):
        machine.loaded(worker, 30.0, 0.0)
        machine.running(worker)
    actions.taken()
    return machine, actions


def test_the_first_worker_is_started_alone_and_the_rest_once_it_has_loaded() -> None:
    actions = Actions()
    machine = Supervision(actions, 3)
    machine.start(0.0)
    assert actions.taken() == ["spawn 0"]
    machine.loaded(0, 30.0, 0.5)
    assert actions.taken() == ["spawn 1", "spawn 2"]
    machine.loaded(1, 30.0, 0.9)
    assert actions.taken() == []


@pytest.mark.parametrize("code", [1, 2])
def test_a_service_that_cannot_be_imported_ends_it_at_once(code: int) -> None:
    actions = Actions()
    machine = Supervision(actions, 3)
    machine.start(0.0)
    machine.exited(0, code, 0.3)
    assert (machine.code, actions.taken(), actions.said) == (code, ["spawn 0"], [])


def test_a_worker_that_dies_is_started_again_after_a_pause() -> None:
    machine, actions = running(2)
    machine.exited(1, -SIGKILL, 100.0)
    assert actions.said == ["worker 1 has ended (SIGKILL); it is started again in 0.5 s"]
    assert machine.next_at() == 100.5
    machine.passed(100.4)
    assert actions.taken() == []
    machine.passed(100.5)
    assert actions.taken() == ["spawn 1"]
    assert machine.code is None and machine.next_at() is None


def test_pauses_grow_and_it_gives_up_with_the_workers_code() -> None:
    machine, actions = running(2)
    now, pauses = 0.0, list[float]()
    for _ in range(MOST_FAST_FAILURES - 1):
        machine.exited(1, 7, now)
        at = machine.next_at()
        assert at is not None
        pauses.append(at - now)
        now = at
        machine.passed(now)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    actions.taken()
    machine.exited(1, 7, now + 9.9)
    assert actions.said[-1].endswith("(exit code 7) for the 5th time within 10 s of its start: giving up")
    assert actions.taken() == ["SIGTERM 0"], "the other one drains"
    assert machine.code is None
    machine.exited(0, 0, now + 12)
    assert machine.code == 7


def test_a_worker_that_has_run_for_long_begins_anew() -> None:
    machine, _ = running(1)
    now = 0.0
    for _ in range(3 * MOST_FAST_FAILURES):
        now += 10.0
        machine.exited(0, 1, now)
        assert machine.next_at() == now + 0.5
        now += 0.5
        machine.passed(now)


def test_workers_that_end_by_themselves_are_not_started_again() -> None:
    machine, actions = running(2)
    machine.exited(0, 0, 50.0)
    assert machine.code is None
    machine.exited(1, 0, 60.0)
    assert (machine.code, actions.taken()) == (0, [])


def test_the_first_signal_is_passed_on_once_and_the_worst_code_wins() -> None:
    machine, actions = running(3)
    machine.signalled(SIGINT, 10.0)
    assert actions.taken() == ["SIGINT 0", "SIGINT 1", "SIGINT 2"]
    machine.exited(0, 0, 10.1)
    machine.exited(1, CUT_OFF, 40.0)
    assert machine.code is None
    machine.exited(2, 0, 40.0)
    assert (machine.code, actions.taken()) == (CUT_OFF, [])


def test_a_worker_that_waits_is_not_started_any_more() -> None:
    machine, actions = running(2)
    machine.exited(0, 1, 1.0)
    machine.signalled(SIGTERM, 1.1)
    machine.passed(5.0)
    assert actions.taken() == ["SIGTERM 1"]
    machine.exited(1, 0, 5.0)
    assert machine.code == FAILURE, "it had failed, and nobody has come for it"


def test_a_second_signal_ends_at_once_and_a_third_kills() -> None:
    machine, actions = running(2)
    machine.signalled(SIGTERM, 1.0)
    machine.signalled(SIGTERM, 2.0)
    assert actions.taken() == ["SIGTERM 0", "SIGTERM 1", "SIGTERM 0", "SIGTERM 1"]
    machine.exited(0, 143, 2.1)
    machine.signalled(SIGTERM, 3.0)
    assert actions.taken() == ["kill 1"]
    machine.exited(1, -SIGKILL, 3.1)
    assert machine.code == 128 + SIGTERM


def test_a_worker_that_does_not_stop_is_killed_behind_its_drain_timeout() -> None:
    machine, actions = running(1)
    machine.signalled(SIGTERM, 1.0)
    actions.taken()
    assert machine.next_at() == 1.0 + 30.0 + GRACE_SECONDS
    machine.passed(1.0 + 30.0 + GRACE_SECONDS)
    assert actions.taken() == ["kill 0"] and actions.said[-1] == "worker 0 does not stop: killed"
    machine.exited(0, -SIGKILL, 42.0)
    assert machine.code == CUT_OFF


def test_what_workers_need_is_gone() -> None:
    machine, actions = running(2)
    machine.failed("the log cannot go on: no space", 5.0)
    assert actions.taken() == ["SIGTERM 0", "SIGTERM 1"]
    machine.exited(0, 0, 6.0)
    machine.exited(1, 0, 6.0)
    assert machine.code == FAILURE


def test_a_change_stops_the_service_in_order_and_starts_it_again() -> None:
    machine, actions = running(1, reload=True)
    machine.changed(["app.py"], 5.0)
    machine.changed(["app.py", "b.py"], 5.2)  # while it stops: what comes next reads it anyway
    assert actions.taken() == ["SIGTERM 0"]
    machine.exited(0, 0, 5.5)
    assert actions.taken() == ["spawn 0"]
    machine.changed(["a.py", "b.py", "c.py", "d.py", "e.py"], 5.6)  # while it loads
    assert actions.taken() == ["SIGTERM 0"]
    assert actions.said[-1] == "changed: a.py, b.py, c.py and 2 more; starting again"


def test_broken_code_is_waited_out() -> None:
    machine, actions = running(1, reload=True)
    machine.changed(["app.py"], 5.0)
    machine.exited(0, 0, 5.1)
    machine.exited(0, 1, 5.5)
    assert actions.said[-1] == "the service has ended (exit code 1); waiting for a change of its files"
    assert machine.code is None and machine.next_at() is None
    actions.taken()
    machine.changed(["app.py"], 60.0)
    assert actions.taken() == ["spawn 0"]


def test_ctrl_c_while_a_change_is_taken_in_starts_nothing() -> None:
    """The old process has had its signal by then; another one would cut its records off."""
    machine, actions = running(1, reload=True)
    machine.changed(["app.py"], 5.0)
    machine.signalled(SIGINT, 5.1)
    assert actions.taken() == ["SIGTERM 0"]
    machine.exited(0, 0, 5.3)
    assert (machine.code, actions.taken()) == (0, [])


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([], 0), ([0, 0], 0), ([0, CUT_OFF], CUT_OFF), ([CUT_OFF, 1], 1), ([137, 1], 1), ([CUT_OFF, 137, 0], 137)],
)
def test_one_code_for_several(codes: list[int], expected: int) -> None:
    assert worst(codes) == expected


def test_what_was_compiled_and_cannot_be_forgotten_ends_nothing(tmp_path: Path) -> None:
    """The supervisor ended with an error when ``__pycache__`` was another user's, or a file."""
    (tmp_path / "__pycache__").write_text("no directory")
    forget_compiled([str(tmp_path / "shop.py"), str(tmp_path / "gone" / "shop.py")])
    assert (tmp_path / "__pycache__").read_text() == "no directory"
