"""The history of the figures: one JSON line for each run of ``bench.py``, and what moved since an earlier one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Row

HISTORY = Path(__file__).parent / "history.jsonl"
"""Git ignores it: figures of different machines do not belong into one file."""
MOVED = 0.1


def line_of(rows: list[Row], **run: Any) -> dict[str, Any]:
    """Return what the history keeps of a run: its circumstances, and each figure that was measured."""
    root = Path(__file__).parents[1]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    figures = {
        row.figure.id: {
            "ours": row.ours.median,
            "beside": row.beside.median if row.beside else None,
            "ratio": row.ratio,
            "cpu_ratio": row.cpu_ratio,
        }
        for row in rows
        if row.ours is not None and row.ratio is not None
    }
    return {"commit": commit, **run, "figures": figures}


def append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def moved(path: Path, rows: list[Row], commit: str, quick: bool) -> Iterator[str]:
    """Yield a line for each figure that moved by more than a tenth, relative to its peer, since it was last measured.

    ``commit`` limits the search to runs of that commit, if it is not empty; ``quick`` to runs of that size. Figures
    without a peer are left out: they depend on the machine's load.
    """
    before: dict[str, tuple[float, str]] = {}
    for text in path.read_text("utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        if line["commit"].startswith(commit) and line["quick"] == quick:
            before |= {id: (figure["ratio"], line["commit"]) for id, figure in line["figures"].items()}
    for figure, ratio in ((row.figure, row.ratio) for row in rows if row.beside is not None):
        if ratio is None or figure.id not in before:
            continue
        former, where = before[figure.id]
        change = ratio / former - 1
        if abs(change) > MOVED:
            word = "better" if (change < 0) == figure.less_is_better else "WORSE"
            yield f"{figure.id:6} {figure.what}: {former:.3g} x at {where}, now {ratio:.3g} x ({change:+.0%}, {word})"
