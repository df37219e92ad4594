"""The ruler itself: ratios, words, what is said of a case that cannot run, the page that is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.named import find_page

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benchmarks"
PAGE = find_page("benchmarks.md")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script's modules, importable while the test runs."""
    monkeypatch.syspath_prepend(str(HERE))
    import bench

    yield bench


def test_every_figure_names_cases_that_exist(bench: ModuleType) -> None:
    from harness import CASES

    figures = bench.OWN_FIGURES + bench.WIRE_FIGURES + bench.CLUSTER_FIGURES + bench.SCHEMA_FIGURES
    figures = figures + bench.LOOP_FIGURES + bench.OUTBOX_FIGURES + bench.SPARK_FIGURES
    places = [place for figure in figures for place in (figure.ours, figure.beside) if place]
    assert [place for place in places if place.rpartition(":")[0] not in CASES] == []
    assert len({figure.id for figure in figures}) == len(figures)


def test_the_pages_explain_every_figure(bench: ModuleType) -> None:
    for page, figures in (
        (PAGE, bench.FIGURES),
        (find_page("benchmarks-serve.md"), bench.WIRE_FIGURES),
        (find_page("benchmarks-kafka.md"), bench.CLUSTER_FIGURES),
        (find_page("benchmarks-registry.md"), bench.SCHEMA_FIGURES),
        (find_page("benchmarks-failures.md"), bench.LOOP_FIGURES),
        (find_page("benchmarks-outbox.md"), bench.OUTBOX_FIGURES),
        (find_page("benchmarks-spark.md"), bench.SPARK_FIGURES),
    ):
        text = page.read_text("utf-8")
        assert bench.BEGIN in text and bench.END in text
        _, _, prose = text.partition(bench.END)
        assert [figure.id for figure in figures if not _is_explained(figure.id, prose)] == []


def _is_explained(name: str, prose: str) -> bool:
    """By itself, or within a range: "`W1a` to `W1d`"."""
    ranges = re.findall(r"`(\w+)(\w)` to `\1(\w)`", prose)
    return f"`{name}`" in prose or any(name[:-1] == stem and low <= name[-1] <= high for stem, low, high in ranges)


@pytest.mark.parametrize(
    ("ours", "less_is_better", "words"),
    [
        (300.0, False, "meets the target"),
        (200.0, False, "between floor and target"),
        (100.0, False, "BELOW THE FLOOR"),
        (100.0, True, "meets the target"),
        (250.0, True, "between floor and target"),
        (400.0, True, "BELOW THE FLOOR"),
    ],
)
def test_a_ratio_of_medians_is_put_into_words(bench: ModuleType, ours: float, less_is_better: bool, words: str) -> None:
    from harness import Figure, Outcome

    floor, target = (3.0, 2.0) if less_is_better else (1.5, 3.0)
    figure = Figure("X", "what", "a:n", "b:n", floor, target, less_is_better)
    rounds = [{"n": ours - 90, "n cpu": 6.0}, {"n": ours, "n cpu": 6.0}, {"n": ours + 9_000, "n cpu": 6.0}]
    row = bench.judge(figure, {"a": Outcome(rounds, None), "b": Outcome([{"n": 100.0, "n cpu": 2.0}], None)})
    assert (row.ratio, row.cpu_ratio, row.verdict) == (ours / 100, 3.0, words)


def test_a_peer_that_is_absent_is_said_and_not_a_failure(bench: ModuleType) -> None:
    from harness import Figure, Outcome

    outcomes = {"a": Outcome([{"n": 1.0}], None), "b": Outcome([], "no redis-server on this machine")}
    row = bench.judge(Figure("X", "what", "a:n", "b:n", None, 2), outcomes)
    assert row.verdict == "not measured: no redis-server on this machine"
    assert "no redis-server" in bench.plain_table([row]) and "no redis-server" in bench.markdown_table([row])


def test_numbers_are_printed_as_a_person_reads_them(bench: ModuleType) -> None:
    from harness import Spread, amount, spread_text

    assert amount(1_670_000, "/s") == "1.67 M/s"
    assert amount(0.21, "x") == "0.21 x"
    assert spread_text(Spread(1_670_000, 1_420_000, 1_800_000), "/s") == "1.67 (1.42..1.8) M/s"
    assert spread_text(Spread(156, 140, 1_268), "us") == "156 (140..1,268) us"


def test_a_page_keeps_what_was_written_by_hand(bench: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n", "utf-8")
    bench.write_page(page, [], "today")
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text and "today" in text


def test_the_history_shows_what_moved_relative_to_its_peer(bench: ModuleType, tmp_path: Path) -> None:
    import history
    from harness import Figure, Outcome

    def rows(ours: float, seconds: float) -> list[object]:
        figures = [Figure("X1", "rate", "a:n", "b:n", None, 2), Figure("X2", "time", "a:s", "b:n", None, 2, True, "s")]
        figures.append(Figure("X3", "no peer", "a:n", None, None, 2))
        outcomes = {"a": Outcome([{"n": ours, "s": seconds}], None), "b": Outcome([{"n": 100.0}], None)}
        return [bench.judge(figure, outcomes) for figure in figures]

    path = tmp_path / "history.jsonl"
    assert list(history.moved(path, rows(300, 300), "", False)) == []
    for ours, quick in ((300.0, False), (900.0, True)):
        line = history.line_of(rows(ours, ours), at="today", quick=quick, rounds=1)
        history.append(path, {**line, "commit": "abc"})
    assert list(history.moved(path, rows(310, 310), "", False)) == []
    assert [" ".join(text.split()) for text in history.moved(path, rows(240, 360), "ab", False)] == [
        "X1 rate: 3 x at abc, now 2.4 x (-20%, WORSE)",
        "X2 time: 3 x at abc, now 3.6 x (+20%, WORSE)",
    ]
    assert [text[-8:] for text in history.moved(path, rows(400, 200), "", False)] == [" better)", " better)"]
    assert list(history.moved(path, rows(100, 100), "fff", False)) == []  # no run of that commit


@pytest.mark.slow  # it measures for 18 s; the other figures are tried in the quick tier
def test_the_failure_loop_is_measured() -> None:
    command = [
        sys.executable,
        str(HERE / "bench.py"),
        "--failures",
        "--quick",
        "--only",
        "F2b,F3a,F5d",
        "--history",
        os.devnull,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "not measured" not in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_outbox_is_measured() -> None:
    command = [
        sys.executable,
        str(HERE / "bench.py"),
        "--outbox",
        "--quick",
        "--only",
        "O1a,O2e,O6a",
        "--history",
        os.devnull,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "not measured" not in done.stdout, done.stdout + done.stderr


def test_one_case_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    command = [sys.executable, str(HERE / "bench.py"), "--quick", "--only", "E5", "--history", str(history)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(history.read_text("utf-8"))["figures"]) == ["E5"]
    assert "plain file 1 KB" in done.stdout and "not measured" not in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", [[], ["--failures"], ["--outbox"]])
def test_the_whole_table_prints(group: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "bench.py"), "--quick", "--history", os.devnull, *group],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "not measured: failed" not in done.stdout, done.stdout + done.stderr
