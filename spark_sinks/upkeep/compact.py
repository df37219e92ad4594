"""`compact`: rewrite many files as few, by default in days that are over."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from typing import NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.shape import DATE
from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.target import Compacted
from spark_sinks.upkeep.tables import founding_of, state_of

MIN_FILES = 2


class CompactReport(NamedTuple):
    """The result of `compact`. If ``before`` is set, partitions whose first value sorts below it were compacted."""

    topic: str
    table: str
    before: str | None
    compacted: Compacted
    seconds: float


def compact(
    to: str,
    *,
    before: str | None = None,
    everything: bool = False,
    min_files: int = MIN_FILES,
    compression: str = "zstd",
    stage: str | None = None,
) -> CompactReport:
    """Rewrite partitions with many files as few files.

    ``before`` selects partitions that sort below it, by default those of days before today (UTC), which only late
    records reach. ``everything`` selects all. It takes over the table, so a landing of it must not run (it would be
    fenced).

    Raises `ConfigError` if the table does not exist, or cannot be compacted.
    """
    started = time.monotonic()
    if min_files < 2:
        raise ConfigError(f"min_files={min_files}: one file is not made fewer; write 2 or more")
    target = open_target(to, options=TargetOptions(compression, stage))
    try:
        state = state_of(target, None)
        if state.partition_by[:1] == (DATE,) and not everything:
            before = _day(before)
        target.open(founding_of(state), time.time_ns() // 1_000_000)
        done = target.compact(before=before, min_files=min_files)
        return CompactReport(state.topic, target.name, before, done, time.monotonic() - started)
    finally:
        target.close()


def _day(text: str | None) -> str:
    """Return a day in the form of directory names; None is today in UTC."""
    if text is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ConfigError(f"before={text!r}: the table is split by day: write 2026-01-31") from None
