"""Every test belongs to one tier, and the core tier keeps its rules (tests/tiers.py)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parallel import unit_of
from tests.tiers import LONGEST_SLEEP_SECONDS, TIERS, group_of_file, quick, tier_of, tier_of_file


def test_every_test_has_one_tier(request: pytest.FixtureRequest) -> None:
    """``-m core`` and ``-m "not slow"`` select by marks: the core mark must be on the tests of no other tier."""
    for item in request.session.items:
        marks = {mark.name for mark in item.iter_markers()} & set(TIERS)
        assert tier_of(item) in marks, f"{item.nodeid} has no tier"
        assert "core" not in marks or marks == {"core"}, f"{item.nodeid} is in {sorted(marks)}"


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        ("import pytest\n\npytestmark = pytest.mark.system\n", "system"),
        ('pytestmark = [pytest.mark.xdist_group("kafka"), pytest.mark.slow]\n', "slow"),
        ('pytestmark = [\n    pytest.mark.system,\n    pytest.mark.xdist_group("spark"),\n]\n', "system"),
        ("@pytest.mark.system\ndef test_x(): ...\n", "core"),
    ],
)
def test_the_tier_of_a_file_is_read_from_its_text(tmp_path: Path, text: str, tier: str) -> None:
    (tmp_path / "test_x.py").write_text(text)
    assert tier_of_file(tmp_path / "test_x.py") == tier


@pytest.mark.parametrize("marks", ['[pytest.mark.system, pytest.mark.xdist_group("kafka")]', "pytest.mark.system"])
def test_files_of_a_group_run_on_one_worker(tmp_path: Path, marks: str) -> None:
    (tmp_path / "test_x.py").write_text(f"pytestmark = {marks}\n")
    assert unit_of("test_x.py::test_y[a@b]", tmp_path) == ("kafka" if "xdist_group" in marks else "test_x.py")


def test_a_group_is_named_for_a_whole_file(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        for mark in item.iter_markers("xdist_group"):
            assert group_of_file(item.path) == mark.args[0], f"{item.nodeid}: name the group in pytestmark"


def test_files_that_share_a_server_are_in_its_group(request: pytest.FixtureRequest) -> None:
    """A file without the group runs on another worker, which would start a server of its own for it."""
    groups = {"_listeners": "kafka", "_parted": "cluster", "spark": "spark"}
    for item in request.session.items:
        if tier_of(item) != "slow":
            fixtures = set(getattr(item, "fixturenames", ()))
            for fixture in groups.keys() & fixtures:
                assert group_of_file(item.path) == groups[fixture], f"{item.nodeid} uses {fixture}"
            assert "_cluster" not in fixtures, f"{item.nodeid}: use parted, which runs anyway"


def test_a_core_test_starts_no_process() -> None:
    with pytest.raises(AssertionError, match=r"test_a_core_test_starts_no_process.*starts a process"):
        subprocess.run([sys.executable, "-c", ""], check=False)


def test_a_core_test_does_not_sleep() -> None:
    with pytest.raises(AssertionError, match="sleeps for"):
        time.sleep(LONGEST_SLEEP_SECONDS * 2)


@pytest.fixture
def earlier_thread() -> Iterator[tuple[threading.Event, threading.Event]]:
    """A thread that runs before the test begins. It sleeps when the first event is set, and then sets the second."""
    begin, ended = threading.Event(), threading.Event()

    def run() -> None:
        begin.wait()
        time.sleep(LONGEST_SLEEP_SECONDS * 2)
        ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield begin, ended
    begin.set()
    thread.join()


def test_a_thread_that_was_there_before_the_test_may_sleep(
    earlier_thread: tuple[threading.Event, threading.Event],
) -> None:
    begin, ended = earlier_thread
    begin.set()
    assert ended.wait(60)


@pytest.mark.system
def test_a_system_test_may_start_a_process() -> None:
    assert subprocess.run([sys.executable, "-c", ""], check=True).returncode == 0


def test_quick_marks_the_other_values_slow() -> None:
    assert [bool(row.marks) for row in quick("abc", 1)] == [False, True, True]
    assert [bool(row.marks) for row in quick(["a", "b"], ["b"])] == [True, False]
    with pytest.raises(AssertionError, match="are not in"):
        quick("abc", ["d"])
