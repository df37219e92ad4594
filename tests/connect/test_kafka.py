"""Connectors where the log is elsewhere: on ``eventbus serve`` and on Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus import EventBus
from eventbus.connect import Connectors
from eventbus.testing import RealKafka
from tests.clients.serving import Served
from tests.connect.conftest import Notes, all_values
from tests.kafka.urls import bus_url

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]


async def check(url: str, folder: Path, notes: Notes) -> None:
    """A file to a topic to a file, by workers one after the other; then a third one with the source's name."""
    file, target = folder / "in.txt", folder / "out.txt"
    source = {"name": "k-lines", "connector.class": "FileStreamSource", "file": file, "topic": "k-lines"}
    sink = {"name": "k-out", "connector.class": "FileStreamSink", "file": target, "topics": "k-lines"}
    worker = {"value.converter": "StringConverter", "offset.storage.topic": "k-offsets"}
    expected: list[str] = []
    for _ in range(2):
        lines = [f"line {len(expected) + number}" for number in range(1_000)]
        expected += lines
        with file.open("a") as opened:
            opened.writelines(f"{line}\n" for line in lines)
        bus = EventBus(url)
        bus.include(part := Connectors(source, sink, worker=worker, note=notes.append))
        async with bus:
            await bus.drain()
            assert [run.state for run in part.runs] == ["running", "running"], notes
            assert await all_values(bus, "k-lines") == expected
        assert target.read_text().splitlines() == expected
        assert [run.records for run in part.runs] == [1_000, 1_000]
    assert [note for note in notes if "created" not in note] == []


@pytest.mark.slow
async def test_a_file_comes_once_on_a_served_log(tmp_path: Path, notes: Notes) -> None:
    with Served(tmp_path / "log") as server:
        await check(f"kafka://{server.bootstrap}", tmp_path, notes)


async def test_a_file_comes_once_on_kafka(real: RealKafka, tmp_path: Path, notes: Notes) -> None:
    await check(bus_url(real.bootstrap), tmp_path, notes)
