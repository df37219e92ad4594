"""No path that users pay for costs more calls, flushes or bytes than its bound in ``benchmarks/counts.py``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [
    pytest.mark.system,  # benchmarks/ is not beside the core tests of the wheel
    pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes are counted in Linux's /proc"),
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the bounds are those of CPython 3.11"),
]

PATHS = ["publish", "publish and handle", "failing record", "send_many of 1,000", "transaction"]
PATHS += ["produce request", "fetch request"]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    import counts

    logging.disable()
    yield counts
    logging.disable(logging.NOTSET)
    del sys.modules["counts"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_path_costs_no_more_than_its_bounds(counts: ModuleType, path: str, tmp_path: Path) -> None:
    measured, _ = await counts.count(path, tmp_path)
    exceeded = {
        field: (value, bound)
        for field, value, bound in zip(measured._fields, measured, counts.PATHS[path][1], strict=True)
        if value > bound
    }
    assert not exceeded, f"{path}: `python benchmarks/counts.py --functions` lists the calls"


def test_every_path_is_tested(counts: ModuleType) -> None:
    assert set(counts.PATHS) == set(PATHS)


@pytest.mark.parametrize("name", ["import eventbus", "import EventBus", 'EventBus("memory://")', "eventbus --version"])
def test_a_program_loads_no_more_modules_than_its_bound(counts: ModuleType, name: str) -> None:
    program, bound = counts.MODULES[name]
    assert counts.modules_after(program) <= bound
