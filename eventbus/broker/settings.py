"""The settings of a broker."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from eventbus.settings.table import read, rows


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one log, described by `eventbus.settings.log`."""

    fsync: Literal["commit", "interval", "os"] = "commit"
    fsync_interval_ms: int = 100
    auto_create_topics: bool = False
    num_partitions: int = 1
    offsets_topic_num_partitions: int = 50
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_retention_ms: int = 604_800_000
    offsets_retention_check_interval_ms: int = 600_000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2_147_483_647
    group_initial_rebalance_delay_ms: int = 0
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2_147_483_647
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_segment_bytes: int = 104_857_600
    transaction_max_timeout_ms: int = 900_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    producer_id_expiration_ms: int = 86_400_000
    log_retention_check_interval_ms: int = 300_000
    log_cleaner_backoff_ms: int = 15_000
    checkpoint_interval_ms: int = 1_000
    log_defaults: dict[str, Any] = {}
    cluster_id: str | None = None

    def check(self) -> None:
        """Raise ConfigError for an invalid value."""
        read(msgspec.structs.asdict(self), rows("log"), "log")

    @property
    def publication_interval_ms(self) -> int:
        """The interval at which the end for readers in other processes is published, if it moved: a fifth of that."""
        return max(1, self.checkpoint_interval_ms // 5)

    @property
    def fsync_promise(self) -> str:
        """The guarantee for an acknowledged record under the fsync setting, in one line."""
        match self.fsync:
            case "commit":
                return "fsync=commit: an acknowledged record survives a power cut"
            case "interval":
                return f"fsync=interval: a power cut loses at most the last {self.fsync_interval_ms} ms"
            case _:
                return "fsync=os: a power cut loses what the operating system had not written yet (5 to 30 s)"
