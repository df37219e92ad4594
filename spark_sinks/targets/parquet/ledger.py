"""The account of a Parquet table, below ``_eventbus/``, where readers of Parquet directories do not look.

``ledger/<number>.json``: an entry for each opening, commit and compaction. **The entry is the commit**: it is created
exclusively, complete, and after everything that it names is on disk. If two landings create the same number, the
second landing fails and is fenced. The newest entry holds the whole account; earlier entries are history.

Files in the table are called ``part-<table id>-<sequence>-<epoch>-<number>.parquet``: those of a sequence that has not
been committed are the leftovers of a crash, known by their name.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

import msgspec

from eventbus.errors import CorruptRecord
from spark_sinks.targets.files import Files
from spark_sinks.targets.side_files import META
from spark_sinks.targets.target import SinkState

LEDGER = f"{META}/ledger"
_VERSION = 2


class TableFile(msgspec.Struct, frozen=True):
    """A committed data file; ``path`` is relative to the table."""

    path: str
    rows: int
    size_bytes: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a table's life.

    - ``files``, ``rejected``: what a commit added, in the table and in the quarantine.
    - ``swap``: the partition directory that a compaction rewrote, and may not have moved to its place yet; the
      next opening names it (and its ``files``) too, and finishes the move.
    - ``begins``: the sequence at which each of the latest epochs began.
    """

    version: int = _VERSION
    number: int
    what: Literal["opened", "committed", "compacted"]
    state: SinkState
    files: list[TableFile] = []
    rejected: list[str] = []
    swap: str | None = None
    begins: dict[int, int] = {}


def successor(
    last: Entry,
    what: Literal["committed", "compacted"],
    state: SinkState,
    *,
    files: list[TableFile],
    rejected: list[str] | None = None,
    swap: str | None = None,
) -> Entry:
    """Return the entry after ``last`` in the same epoch."""
    return Entry(
        number=last.number + 1,
        what=what,
        state=state,
        files=files,
        rejected=rejected or [],
        swap=swap,
        begins=last.begins,
    )


class _Version(msgspec.Struct):
    version: int


def newest(files: Files) -> Entry | None:
    """Return the newest entry; None where no table was founded. Raises `CorruptRecord` for a ledger with holes."""
    paths = sorted(path for path in files.files_below(LEDGER) if _is_entry(path))
    for number, path in enumerate(paths):
        if path != entry_path(number):
            raise CorruptRecord(f"entry {number} is missing from {LEDGER}: restore it from a copy of the table")
    if not paths:
        return None
    data = files.read(paths[-1])
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != _VERSION:
            raise CorruptRecord(f"{paths[-1]} has version {version}, this release knows {_VERSION}: upgrade it")
        return msgspec.json.decode(data, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"{paths[-1]} is damaged ({error}): restore it from a copy of the table") from error


def append(files: Files, entry: Entry) -> bool:
    """Make an entry the newest one; False when another landing was quicker."""
    return files.create(entry_path(entry.number), msgspec.json.format(msgspec.json.encode(entry)))


def unfinished(files: Files) -> list[str]:
    """Return the temporary files of entries that a crash prevented."""
    return [path for path in files.files_below(LEDGER) if PurePosixPath(path).name.startswith(".")]


def entry_path(number: int) -> str:
    """Return the path of an entry, relative to the table."""
    return f"{LEDGER}/{number:020d}.json"


def _is_entry(path: str) -> bool:
    name = PurePosixPath(path).name
    return len(name) == 25 and name[:20].isdigit() and name.endswith(".json")
