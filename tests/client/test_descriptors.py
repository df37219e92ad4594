"""A bus and its file descriptors: which ones it keeps open, and what happens when the process has no more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from eventbus import EventBus
from tests.descriptors import few_descriptors as few_descriptors
from tests.descriptors import open_files
from tests.support import others_wait

SENDS = """
import resource, sys
import anyio
from eventbus import EventBus

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

async def main():
    async with EventBus("file://" + sys.argv[1]) as bus:
        await bus.admin.create_topic("t", partitions=60)
        with anyio.fail_after(60):
            for _ in range(2):
                async with anyio.create_task_group() as tasks:
                    for partition in range(60):
                        tasks.start_soon(lambda partition=partition: bus.send("t", b"x", partition=partition))
        print((await bus.health()).status)

anyio.run(main)
"""


@pytest.mark.parametrize("fsync", ["commit", "interval", "os"])
async def test_files_that_are_not_read_again_are_closed(tmp_path: Path, fsync: str) -> None:
    async with EventBus(f"file://{tmp_path}", fsync=fsync, fsync_interval_ms=10) as bus:
        for number in range(5):
            await bus.admin.create_topic(f"t-{number}", configs={"internal.segment.bytes": 200})
            for _ in range(3):
                await bus.send(f"t-{number}", b"x" * 100)
            if number % 2:
                await bus.admin.delete_topics([f"t-{number}"])
        await bus.flush()
        await others_wait()
        kinds = {name.rpartition(".")[2] for name in open_files(tmp_path)}
        assert kinds <= {"log", "lock", "journal", tmp_path.name}


async def test_topics_are_made_and_partitions_written_with_few_descriptors(
    tmp_path: Path, few_descriptors: Callable[[Path, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventbus.backends.flushes._PAUSE_SECONDS", 0)
    async with EventBus(f"file://{tmp_path}") as bus:
        few_descriptors(tmp_path, 12)
        for number in range(3):
            await bus.admin.create_topic(f"t-{number}", partitions=10)
            async with anyio.create_task_group() as tasks:
                for partition in range(10):
                    tasks.start_soon(lambda n=number, p=partition: bus.send(f"t-{n}", b"x", partition=p))
        assert (await bus.health()).status == "ok"


@pytest.mark.system
def test_sixty_partitions_are_written_with_128_descriptors(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", SENDS, tmp_path], capture_output=True, text=True, timeout=100)
    assert ran.stdout == "ok\n", ran.stderr[-3000:]
