"""`compact`: few files of many, in the days that are over."""

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
    """``before``: partitions whose first value sorts below it were looked at; None: all of them."""

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
    """Rewrite partitions of many files as few.

    ``before``: partitions that sort below it; by default those of days before today (UTC), which late records only
    reach. ``everything``: all of them. Takes the table over, so a landing of it must not run (it would be fenced).

    Raises `ConfigError` when there is no such table, or where there is nothing of that kind to do.
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
    """A day as directories are named; None: today, in UTC."""
    if text is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ConfigError(f"before={text!r}: the table is split by day: write 2026-01-31") from None
