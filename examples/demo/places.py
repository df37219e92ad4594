"""The directory, log and tables of the demo."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import msgspec

from eventbus import EventBus


class Places(msgspec.Struct, frozen=True):
    """A directory of the demo's own, or that directory and the log that ``--url`` names."""

    root: Path
    given: str | None = None
    """The log's URL; None: a log below ``root``."""

    @property
    def prefix(self) -> str:
        """The beginning of topics and groups in a log that others use, so that the demo deletes only its own."""
        return "" if self.given is None else "demo-"

    @property
    def url(self) -> str:
        return self.given or _url(self.root / "log")

    @property
    def is_in_memory(self) -> bool:
        return self.url.startswith("memory:")

    @property
    def readable_url(self) -> str:
        """A directory that Spark can read: the log, or a copy of it."""
        return self.url if self.url.startswith("file:") else _url(self.root / "copy")

    @property
    def table(self) -> Path:
        return self.root / "warehouse" / "flights"


def places_of(directory: str, url: str | None) -> Places:
    """A bare ``memory://`` gets a name, so that the demo's buses meet in one log."""
    return Places(Path(directory), "memory://demo" if url == "memory://" else url)


async def delete_topics(bus: EventBus, *names: str) -> None:
    """Delete those of the topics that exist."""
    existing = {*names}.intersection(await bus.admin.list_topics())
    if existing:
        await bus.admin.delete_topics(sorted(existing))


def _url(directory: Path) -> str:
    path = quote(str(directory), safe="/~")
    return f"file://{path}" if directory.is_absolute() else f"file://./{path}"
