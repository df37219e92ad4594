"""Find the segments of a log that must be deleted: too old, too many, or wholly below its start offset.

https://kafka.apache.org/documentation/#topicconfigs (retention.ms, retention.bytes, cleanup.policy)
"""

from __future__ import annotations

from collections.abc import Sequence

from eventbus.log.config import LogConfig
from eventbus.log.segment import Damage, Segment
from eventbus.log.wall_time import TOLERANCE_MS, WallTime
from eventbus.types import NO_TIMESTAMP


def doomed_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    wall_now_ms: int,
    *,
    wall: WallTime,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    gaps: bool,
    limit: int,
) -> list[str]:
    """Return a reason for each of the oldest segments that must be deleted, up to ``limit``.

    ``wall`` dates timestamps that lie in the future. Only records that readers may see are deleted. The last segment is
    deleted only with all others, and by age.
    """
    by_policy = "delete" in config.cleanup_policy
    excess = -1
    if by_policy and config.retention_bytes >= 0:
        excess = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    reasons: list[str] = []
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    for segment, end_offset in zip(segments, ends, strict=True):
        count = len(reasons)
        is_last = count == len(segments) - 1
        # Records above the watermark are not acknowledged yet. Deleting them would lose a record that its producer is
        # about to be notified of.
        if count == limit or end_offset > high_watermark or (is_last and not segment.size_bytes):
            break
        excess -= segment.size_bytes
        if not is_last and end_offset <= log_start_offset:
            reasons.append(f"below the log start offset {log_start_offset}")
        elif not is_last and excess >= 0:
            reasons.append(f"the log is larger than retention.bytes={config.retention_bytes}")
        elif by_policy and config.retention_ms >= 0:
            newest_ms = newest_timestamp_ms(segments, count, config, wall_now_ms, wall, gaps=gaps)
            if newest_ms is None or wall_now_ms - newest_ms <= config.retention_ms:
                break
            reasons.append(f"older than retention.ms={config.retention_ms}")
        else:
            break
    return reasons


def deadline_ms(oldest: Segment, config: LogConfig, *, gaps: bool) -> int | None:
    """Return when the oldest segment expires; None if it never does."""
    if config.retention_ms < 0 or "delete" not in config.cleanup_policy:
        return None
    newest_ms = _newest_ms(oldest, gaps)
    return None if newest_ms is None else newest_ms + config.retention_ms + 1


def is_ahead(segment: Segment, config: LogConfig, wall_now_ms: int, *, gaps: bool) -> bool:
    """Return True if a record has a later timestamp than ``message.timestamp.after.max.ms`` allows now.

    Either the clock that stamped it was ahead, or it was stored before that key was enforced.
    """
    newest_ms = _newest_ms(segment, gaps)
    return newest_ms is not None and newest_ms - wall_now_ms > max(config.timestamp_after_max_ms, TOLERANCE_MS)


def newest_timestamp_ms(
    segments: Sequence[Segment], number: int, config: LogConfig, wall_now_ms: int, wall: WallTime, *, gaps: bool
) -> int | None:
    """Return the time of the newest record of a segment, or None where it cannot be read.

    A segment that `is_ahead` would keep itself, and all that follow, until its time comes. It was written before the
    segments after it, so it is as old as the first of them that is not ahead. If all are, it is as old as the next
    segment, which was created when it was sealed. The last segment counts as new, until
    `PartitionLog.apply_retention` has sealed it.
    """
    for segment in segments[number:]:
        if not segment.size_bytes:
            break
        if not is_ahead(segment, config, wall_now_ms, gaps=gaps):
            return _newest_ms(segment, gaps)
    if number + 1 == len(segments):
        return wall_now_ms
    return wall.believed(segments[number + 1].created_ms, wall_now_ms)


def _newest_ms(segment: Segment, gaps: bool) -> int | None:
    """Return the newest record's time, or the segment's own if records have none; None if it cannot be read."""
    try:
        timestamp_ms = segment.largest_timestamp_ms(gaps=gaps)
    except (Damage, OSError):
        return None  # never delete unreadable data: a user may want to repair it
    return segment.created_ms if timestamp_ms == NO_TIMESTAMP else timestamp_ms
