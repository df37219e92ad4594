"""What a broker can be told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from eventbus.errors import ConfigError

_Positive = Annotated[int, Meta(ge=1)]
_Partitions = Annotated[int, Meta(ge=1, le=10_000)]


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one log. Names are Kafka's broker configs, dots as underscores; times in milliseconds."""

    fsync: Literal["commit", "interval", "os"] = "commit"
    """When stored bytes are forced to disk. ``commit``: before they are acknowledged or read. ``interval``: in the
    background; a power cut loses at most ``fsync_interval_ms``. ``os``: when the operating system likes; a power cut
    loses its tail of 5 to 30 s. None of them loses anything when only the process dies."""
    fsync_interval_ms: _Positive = 100
    auto_create_topics: bool = False
    """``auto.create.topics.enable``. Off: a mistyped name is an error, not a topic."""
    num_partitions: _Partitions = 1
    """``num.partitions``: of a topic that does not say."""
    offsets_topic_num_partitions: _Partitions = 50
    """Of ``__consumer_offsets``, when it is created; later it keeps what it has."""
    offsets_topic_segment_bytes: _Positive = 104_857_600
    offsets_retention_ms: _Positive = 604_800_000
    """How long committed offsets outlive their last use (``offsets.retention.minutes``, 7 days): the end of the group's
    last member; without members, their last commit."""
    offsets_retention_check_interval_ms: _Positive = 600_000
    group_min_session_timeout_ms: _Positive = 6_000
    group_max_session_timeout_ms: _Positive = 1_800_000
    group_max_size: _Positive = 2_147_483_647
    group_initial_rebalance_delay_ms: Annotated[int, Meta(ge=0)] = 0
    """How long the first rebalance of an empty group waits for more members (Kafka: 3,000). 0: a sole member is served
    at once, and each further one is a rebalance."""
    group_consumer_session_timeout_ms: _Positive = 45_000
    """Of groups of the consumer protocol (KIP-848), whose members do not choose it."""
    group_consumer_heartbeat_interval_ms: _Positive = 5_000
    """How often such members are told to come by."""
    group_consumer_max_size: _Positive = 2_147_483_647
    transaction_state_log_num_partitions: _Partitions = 50
    """Of ``__transaction_state`` (``transaction.state.log.num.partitions``), when it is created; later it keeps what it
    has."""
    transaction_state_log_segment_bytes: _Positive = 104_857_600
    transaction_max_timeout_ms: _Positive = 900_000
    """The longest ``transaction_timeout_ms`` a producer may ask for."""
    transaction_abort_timed_out_transaction_cleanup_interval_ms: _Positive = 10_000
    """How often open transactions are compared with their timeout: one ends up to this much after it, as in Kafka."""
    transactional_id_expiration_ms: _Positive = 604_800_000
    """After so long without a transaction a transactional id is forgotten; 7 days."""
    transaction_remove_expired_transaction_cleanup_interval_ms: _Positive = 3_600_000
    """How often idle transactional ids are compared with that."""
    producer_id_expiration_ms: _Positive = 86_400_000
    """After so long a partition forgets a producer that wrote nothing and has no transaction open; 1 day. Found out
    every ``log_retention_check_interval_ms``."""
    log_retention_check_interval_ms: _Positive = 300_000
    log_cleaner_backoff_ms: _Positive = 15_000
    """How often to look for a log that is due to be compacted, while none is."""
    checkpoint_interval_ms: _Positive = 1_000
    """How often checkpoints are written, if anything moved: from where recovery begins, and how far others may read."""
    log_defaults: dict[str, Any] = {}
    """Topic configs for topics that do not set them, under Kafka's topic keys."""
    cluster_id: str | None = None
    """Refuse a directory of another cluster; for a new one, its id. None: whatever is there, or a new id."""

    def check(self) -> None:
        """Raises ConfigError for a value that cannot be."""
        try:
            msgspec.convert(msgspec.structs.asdict(self), BrokerConfig)
        except msgspec.ValidationError as error:
            raise ConfigError(f"setting of the log: {error}") from None

    @property
    def publication_interval_ms(self) -> int:
        """How often readers in other processes learn how far they may read, if anything moved: a fifth of that."""
        return max(1, self.checkpoint_interval_ms // 5)

    @property
    def fsync_promise(self) -> str:
        """What the fsync setting means for an acknowledged record, in one line."""
        match self.fsync:
            case "commit":
                return "fsync=commit: an acknowledged record survives a power cut"
            case "interval":
                return f"fsync=interval: a power cut loses at most the last {self.fsync_interval_ms} ms"
            case _:
                return "fsync=os: a power cut loses what the operating system had not written yet (5 to 30 s)"
