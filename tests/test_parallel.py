"""How the suite is cut for several workers (tests/parallel.py)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist", reason="the wheel's suite may run without it")

from tests.parallel import APART, HEAVY, LONG, TOGETHER, Pieces, piece_of

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("start", sorted({*TOGETHER, *APART, *HEAVY, *LONG}))
def test_what_is_named_is_there(start: str) -> None:
    assert (ROOT / start).exists()


def test_a_file_stays_together_and_so_do_some_folders() -> None:
    assert piece_of("tests/log/test_index.py::TestX::test_y[a::b]") == "tests/log/test_index.py"
    assert piece_of("tests/kafka/test_faults.py::test_x") == piece_of("tests/kafka/test_leaving.py::test_y")
    assert piece_of("tests/test_readme.py::test_x[a]") != piece_of("tests/test_readme.py::test_x[b]")


class Worker:
    """What the scheduler knows of one: it takes tests by their number in the list of all."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.taken: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.taken += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    """Two workers that begin with the tests of these files, four each."""

    def __init__(self, *files: str) -> None:
        self.tests = [f"tests/{file}.py::test_{number}" for file in files for number in range(4)]
        config: Any = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda name: ["popen", "popen"])
        self.pieces = Pieces(config, None)
        self.pieces.log = lambda *said: None
        self.one, self.two = self.add("one"), self.add("two")
        self.pieces.schedule()

    def add(self, name: str) -> Any:
        worker: Any = Worker(name)
        self.pieces.add_node(worker)
        self.pieces.add_node_collection(worker, self.tests)
        return worker

    def begun(self, worker: Any) -> list[str]:
        return [*dict.fromkeys(piece_of(self.tests[number]) for number in worker.taken)]

    def finish(self, worker: Any, most: int = 1_000) -> None:
        """As many as it has now, or the first of them."""
        todo, worker.taken = worker.taken[:most], worker.taken[most:]
        for number in todo:
            self.pieces.mark_test_complete(worker, number)


def test_one_piece_with_jvms_at_a_time_and_the_long_ones_first() -> None:
    run = Run("broker/test_a", "testing/test_crash_points", "spark/live/test_b", "clients/test_c", "records/test_d")
    assert run.begun(run.one) == ["tests/clients/"]
    assert run.begun(run.two) == ["tests/testing/test_crash_points.py"]
    run.finish(run.two)
    assert run.begun(run.two) == ["tests/broker/test_a.py"], "the other one is at JVMs"
    run.finish(run.one)
    assert run.begun(run.one) == ["tests/spark/live/"], "and goes on with them"


def test_a_worker_that_crashes_leaves_nobody_waiting() -> None:
    run = Run("broker/test_a", "records/test_b", "records/test_c", "records/test_d")
    assert run.begun(run.one) == ["tests/broker/test_a.py"]
    run.finish(run.one)  # what is finished is queued again by xdist, when its worker dies
    run.finish(run.one, 2)
    run.pieces.remove_node(run.one)
    heir = run.add("heir")
    run.pieces.schedule()
    for _ in range(10):
        run.finish(run.two)
        run.finish(heir)
    assert not run.pieces.has_pending
    assert run.two.shutting_down and heir.shutting_down
