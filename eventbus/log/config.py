"""Configuration of a partition's log. Names and defaults are Kafka's topic configs, with underscores for dots."""

from __future__ import annotations

import msgspec

from eventbus.types import TimestampType


class LogConfig(msgspec.Struct, frozen=True):
    """The topic configs that a log uses, described by `eventbus.settings.topics`."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    max_message_bytes: int = 1_048_588
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    cleanup_policy: tuple[str, ...] = ("delete",)
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    min_cleanable_dirty_ratio: float = 0.5
    timestamp_before_max_ms: int = (1 << 63) - 1
    timestamp_after_max_ms: int = 3_600_000
