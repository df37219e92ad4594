"""Every wait of clients and backends goes by the timers of their log: else a test's clock would not stand for it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import eventbus

PACKAGES = Path(next(iter(eventbus.__path__)))
REAL_WAITS = {"sleep", "sleep_until", "move_on_after", "move_on_at", "fail_after", "fail_at", "current_time"}
WAITERS = {"anyio", "asyncio", "trio", "time"}
"""`time.monotonic` is fine: how long something took is no wait."""
SEAM = "backends/clock.py"
REAL: dict[str, list[str]] = {
    "backends/kafka/backend.py": ["time.sleep"],
    "backends/kafka/cluster_metadata.py": ["time.sleep"],
    "backends/flushes.py": ["time.sleep"],
    "client/ledger_writer.py": ["anyio.sleep"],
}
"""Threads that query a real cluster, or flush when the process has no file descriptor left. And the pause of a writer
that another process has overtaken: no test's clock moves it."""


def real_waits(source: str) -> list[str]:
    """Where a program waits by the event loop's own time: ``line: name``."""
    found: list[str] = []
    if REAL_WAITS.isdisjoint(re.findall(r"\w+", source)):
        return found  # most modules: parsing them takes time
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in WAITERS:
            names = {alias.name for alias in node.names} & REAL_WAITS
            found += [f"{node.lineno}: from {node.module} import {name}" for name in sorted(names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            called = f"{node.value.id}.{node.attr}"
            found += [f"{node.lineno}: {called}"] if node.value.id in WAITERS and node.attr in REAL_WAITS else []
    return found


def modules() -> list[str]:
    return sorted(
        path.relative_to(PACKAGES).as_posix()
        for floor in ("client", "backends")
        for path in (PACKAGES / floor).rglob("*.py")
    )


def test_no_module_waits_by_itself() -> None:
    for module in modules():
        found = real_waits((PACKAGES / module).read_text())
        if module != SEAM:
            names = [line.partition(": ")[2] for line in found]
            assert names == REAL.get(module, []), f"{module}: {found}: use the timers of the engine or backend"


def test_the_look_finds_what_it_looks_for() -> None:
    assert real_waits((PACKAGES / SEAM).read_text()) != []
    assert real_waits("import anyio\nanyio.sleep(1)\nanyio.Event()") == ["2: anyio.sleep"]
    assert real_waits("from anyio import sleep, Event") == ["1: from anyio import sleep"]
    assert real_waits("with anyio.move_on_at(3): ...") == ["1: anyio.move_on_at"]
    assert real_waits("from time import sleep, monotonic") == ["1: from time import sleep"]
    assert real_waits("time.sleep(1)\ntime.monotonic()") == ["1: time.sleep"]
    assert real_waits("timers.sleep(1)\nanyio.CancelScope(shield=True)") == []
