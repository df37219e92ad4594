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


def test_one_piece_with_jvms_at_a_time_and_the_long_ones_first() -> None:
    files = ["broker/test_a", "testing/test_crash_points", "spark/test_b", "clients/test_c", "records/test_d"]
    tests = [f"tests/{file}.py::test_{number}" for file in files for number in range(4)]
    config: Any = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda name: ["popen", "popen"])
    pieces = Pieces(config, None)
    pieces.log = lambda *said: None
    workers: list[Any] = [Worker("one"), Worker("two")]
    for worker in workers:
        pieces.add_node(worker)
        pieces.add_node_collection(worker, tests)

    def begun(worker: Worker) -> list[str]:
        return [*dict.fromkeys(piece_of(tests[number]) for number in worker.taken)]

    def finish(worker: Any) -> None:
        for number in [*worker.taken]:
            pieces.mark_test_complete(worker, number)

    pieces.schedule()
    one, two = workers
    assert begun(one) == ["tests/clients/"]
    assert begun(two) == ["tests/testing/test_crash_points.py"]
    finish(two)
    assert begun(two)[1:] == ["tests/broker/test_a.py"], "the other one is at JVMs"
    finish(one)
    assert begun(one)[1:] == ["tests/spark/"], "and goes on with them"
