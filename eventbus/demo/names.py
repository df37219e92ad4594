"""The demo's names of topics and groups, and its paths."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import msgspec


class Names(msgspec.Struct, frozen=True):
    """Topics and groups. In a private log they have plain names; in a shared log they begin with ``demo-`` (after
    the ``dlq.`` of dead letters), so that they do not collide, and the demo deletes only its own."""

    prefix: str = ""

    @property
    def flights(self) -> str:
        return f"{self.prefix}flights"

    @property
    def delays(self) -> str:
        return f"{self.prefix}delays"

    @property
    def schemas(self) -> str:
        """The subject of the flights' schemas."""
        return f"{self.flights}-value"

    @property
    def delay_maker(self) -> str:
        """The group of the handler between flights and delays."""
        return f"{self.prefix}delay-maker"

    @property
    def hours(self) -> str:
        """The counts that Spark writes back, by airport and hour."""
        return f"{self.prefix}hours"

    @property
    def hour_counter(self) -> str:
        """The job between flights and hours: its transactional id, and the group that stores its next batch."""
        return f"{self.prefix}hour-counter"

    @property
    def transfers(self) -> str:
        return f"{self.prefix}transfers"

    @property
    def checking(self) -> str:
        return f"{self.prefix}checking"

    @property
    def savings(self) -> str:
        return f"{self.prefix}savings"

    @property
    def bank(self) -> str:
        """The group of the service between transfers and accounts."""
        return f"{self.prefix}bank"

    @property
    def arrivals(self) -> str:
        return f"{self.prefix}arrivals"

    @property
    def board(self) -> str:
        return f"{self.prefix}board"

    @property
    def board_maker(self) -> str:
        """The group of the handler between arrivals and board."""
        return f"{self.prefix}board-maker"

    @property
    def dead(self) -> str:
        """The dead-letter topic of that handler."""
        return f"dlq.{self.board_maker}"

    @property
    def of_flights(self) -> tuple[str, ...]:
        return self.flights, self.delays, self.hours

    @property
    def of_the_bank(self) -> tuple[str, ...]:
        return self.transfers, self.checking, self.savings

    @property
    def of_the_board(self) -> tuple[str, ...]:
        return self.arrivals, self.board, f"retry.{self.board_maker}", self.dead


OWN, SHARED = Names(), Names("demo-")


class Places(msgspec.Struct, frozen=True):
    """The demo's storage: a directory, or for its records the log of ``--url``."""

    root: Path
    given: str | None = None
    """The log's URL; None: two private logs, below ``root``."""

    @property
    def names(self) -> Names:
        return OWN if self.given is None else SHARED

    @property
    def is_a_file(self) -> bool:
        """True if other programs can read the log's directory."""
        return self.url.startswith("file:")

    @property
    def is_in_memory(self) -> bool:
        return self.url.startswith("memory:")

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def bank(self) -> Path:
        return self.root / "bank"

    @property
    def copy(self) -> Path:
        """The directory that Spark reads if the log is not a directory."""
        return self.root / "copy"

    @property
    def table(self) -> Path:
        return self.root / "warehouse" / "flights"

    @property
    def hours_table(self) -> Path:
        return self.root / "warehouse" / "hours"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of Spark's stream: its position, and the hours that are still open."""
        return self.root / "hours-checkpoint"

    @property
    def picture(self) -> Path:
        return self.root / "delays.png"

    @property
    def url(self) -> str:
        return self.given or _url(self.log)

    @property
    def bank_url(self) -> str:
        return self.given or _url(self.bank)

    @property
    def copy_url(self) -> str:
        return _url(self.copy)


def places_of(directory: str, url: str | None) -> Places:
    """Return the paths. A bare ``memory://`` gets a name, because the demo's buses must share a log."""
    return Places(Path(directory), "memory://demo" if url == "memory://" else url)


def _url(directory: Path) -> str:
    path = quote(str(directory), safe="/~")
    return f"file://{path}" if directory.is_absolute() else f"file://./{path}"
