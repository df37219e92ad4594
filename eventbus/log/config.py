"""What a partition's log can be told. Names and defaults are Kafka's topic configs, dots as underscores."""

from __future__ import annotations

import msgspec

from eventbus.types import TimestampType


class LogConfig(msgspec.Struct, frozen=True):
    """The configs of a topic that its logs obey (https://kafka.apache.org/documentation/#topicconfigs)."""

    segment_bytes: int = 1 << 30
    """A segment never grows beyond this, unless one batch alone is larger."""
    segment_ms: int = 604_800_000
    """A segment takes no batch whose timestamp is this much later than its first one's."""
    segment_index_bytes: int = 10_485_760
    """A segment ends when one of its indexes reaches this size."""
    index_interval_bytes: int = 4096
    """About one index entry for so many bytes of log."""
    retention_ms: int = 604_800_000
    """A segment goes when its newest record is older; -1 keeps it."""
    retention_bytes: int = -1
    """The oldest segments go while the rest is at least this large; -1 keeps them."""
    max_message_bytes: int = 1_048_588
    """The largest batch accepted."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    cleanup_policy: tuple[str, ...] = ("delete",)
    delete_retention_ms: int = 86_400_000
    """A tombstone, or a marker whose transaction is gone, stays so long after it was first cleaned."""
    min_compaction_lag_ms: int = 0
    """A segment with a record younger than this is not cleaned."""
    max_compaction_lag_ms: int = (1 << 63) - 1
    """A log with a sealed, uncleaned record older than this is cleaned, however little of it is dirty."""
    min_cleanable_dirty_ratio: float = 0.5
    """A log is cleaned when more than this part of its cleanable bytes was never cleaned."""
    timestamp_before_max_ms: int = (1 << 63) - 1
    """A record whose timestamp is further in the past than this is refused."""
    timestamp_after_max_ms: int = 3_600_000
    """A record whose timestamp is further in the future than this is refused."""
