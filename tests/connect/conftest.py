"""Connectors on a bus of each storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus
from eventbus.connect import Context, SourceConnector
from eventbus.connect.settings import Properties, read
from tests.databases import database, databases, new_database
from tests.disks import nothing_waits_for_the_disk

__all__ = ["database", "databases", "new_database", "nothing_waits_for_the_disk"]

Opened = Callable[..., Any]


class Notes(list[str]):
    """What connectors have said."""

    def has(self, text: str) -> bool:
        return any(text in note for note in self)


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture(params=["memory", "file"])
def make_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], EventBus]:
    url = "memory://" if request.param == "memory" else f"file://{tmp_path / 'log'}"
    return lambda: EventBus(url)


@pytest.fixture
def opened(notes: Notes) -> Iterator[Opened]:
    """A source by itself, without a bus: what it returns poll by poll."""

    sources: list[SourceConnector] = []

    def make(kind: type[SourceConnector], settings: dict[str, Any], offsets: dict[str, Any] | None = None) -> Any:
        properties = Properties.of(settings)
        values = read(properties, kind.keys, kind.__name__, notes)
        source = kind(Context("source", values, properties.place, lambda: 1_700_000_000_000, notes.append))
        sources.append(source)
        source.start(offsets or {})
        return source

    yield make
    for source in sources:
        source.stop()


async def all_values(bus: EventBus, topic: str) -> list[str]:
    """Of a topic, read committed."""
    async with bus.new_consumer(topic, start="earliest") as consumer:
        return [(record.value or b"").decode() async for record in consumer.until_end()]
