"""The keyword arguments of buses, clients and handlers, for type checkers and editors.

Import these classes to write a function that passes options on: ``def new_bus(**options: Unpack[BusOptions])``. The
program itself reads `BrokerConfig`, `ProducerConfig`, `ConsumerConfig` and `ConsumerSpec`, which check the values and
hold the defaults; tests/client/test_keywords.py compares names, types and defaults with these classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from eventbus.backends.kafka.keywords import (
    ClientOptions,
    ConsumerClientOptions,
    JavaClientOptions,
    ProducerClientOptions,
)
from eventbus.client.handling.middleware import Middleware
from eventbus.client.handling.options import Ack, Delivery, OnError, Order
from eventbus.client.partitioner import PartitionFunction
from eventbus.coordinator.assignors import Assignor
from eventbus.durations import Duration, Milliseconds
from eventbus.recovery import FailurePolicy
from eventbus.types import Compression, ConsumerRecord, IsolationLevel

OAuthCallback = Callable[[str], tuple[str, float]]
"""``(sasl.oauthbearer.config) -> (token, its expiry in seconds since the epoch)``, as in confluent-kafka."""
Start = Literal["earliest", "latest", "none"] | timedelta
"""Where a group without a committed offset begins; a timedelta: with records written at most so long ago."""
Isolation = Literal["read_committed", "read_uncommitted"] | IsolationLevel
AssignorName = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]
Assignors = AssignorName | Assignor | type[Assignor] | Sequence[AssignorName | Assignor | type[Assignor]]
"""One assignor, or several in order of preference."""


class LogOptions(TypedDict, total=False):
    """Settings of a log that runs in this process. ``kafka://`` ignores them: they belong to the broker there."""

    fsync: Literal["commit", "interval", "os"]
    fsync_interval_ms: Milliseconds
    auto_create_topics: bool
    num_partitions: int
    offsets_topic_num_partitions: int
    offsets_topic_segment_bytes: int
    offsets_retention_ms: Milliseconds
    offsets_retention_check_interval_ms: Milliseconds
    group_min_session_timeout_ms: Milliseconds
    group_max_session_timeout_ms: Milliseconds
    group_max_size: int
    group_initial_rebalance_delay_ms: Milliseconds
    group_consumer_session_timeout_ms: Milliseconds
    group_consumer_heartbeat_interval_ms: Milliseconds
    group_consumer_max_size: int
    transaction_state_log_num_partitions: int
    transaction_state_log_segment_bytes: int
    transaction_max_timeout_ms: Milliseconds
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Milliseconds
    transactional_id_expiration_ms: Milliseconds
    transaction_remove_expired_transaction_cleanup_interval_ms: Milliseconds
    producer_id_expiration_ms: Milliseconds
    log_retention_check_interval_ms: Milliseconds
    log_cleaner_backoff_ms: Milliseconds
    checkpoint_interval_ms: Milliseconds
    log_defaults: Mapping[str, str | int | float | bool | Sequence[str]]
    cluster_id: str | None


class ProducerDefaults(ClientOptions, JavaClientOptions, ProducerClientOptions, total=False):
    """Settings that a bus may give to all of its producers."""

    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    batch_size: int
    linger_ms: Milliseconds
    buffer_memory: int
    max_block_ms: Milliseconds
    max_request_size: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | Compression
    enable_idempotence: bool
    transaction_timeout_ms: Milliseconds
    partitioner: Literal["murmur2", "murmur3", "round_robin"] | PartitionFunction


class ProducerFunctionOptions(ProducerDefaults, total=False):
    """Settings of ``@producer``, whose function then has a producer of its own."""

    client_id: str


class ProducerOptions(ProducerFunctionOptions, total=False):
    """Settings of `EventBus.new_producer`."""

    transactional_id: str


class ConsumerDefaults(ClientOptions, JavaClientOptions, ConsumerClientOptions, total=False):
    """Settings that a bus may give to all of its consumers."""

    fetch_min_bytes: int
    fetch_max_wait_ms: Milliseconds
    max_partition_fetch_bytes: int
    check_crcs: bool
    session_timeout_ms: Milliseconds
    heartbeat_interval_ms: Milliseconds
    max_poll_interval_ms: Milliseconds
    partition_assignment_strategy: Assignors


class ConsumerOptions(ConsumerDefaults, total=False):
    """Settings of `EventBus.new_consumer`, besides what it reads."""

    client_id: str
    request_timeout_ms: Milliseconds
    start: Start
    isolation_level: Isolation
    group_instance_id: str
    enable_auto_commit: bool
    auto_commit_interval_ms: Milliseconds


class ReaderOptions(ConsumerOptions, total=False):
    """Settings of `EventBus.reader`."""

    group: str | None


class BusOptions(LogOptions, ProducerDefaults, ConsumerDefaults, total=False):
    """Settings of `EventBus`: its own, those of its log, and the defaults of its producers and consumers."""

    service: str | None
    client_id: str
    drain_timeout_ms: Milliseconds
    wedged_after_ms: Milliseconds
    slow_loop_ms: Milliseconds | None
    oauth_cb: OAuthCallback


class CallOptions(ConsumerDefaults, total=False):
    """Options of ``@bus.consumer`` that concern the call of the handler; ``@bus.every`` takes them too."""

    group: str
    client_id: str
    request_timeout_ms: Milliseconds
    isolation_level: Isolation
    on_error: OnError
    retry: FailurePolicy | bool | int | Callable[..., Any]
    dead_letter: bool | str
    tx: object
    delivery: Delivery
    exactly_once: bool
    timeout: Duration | None
    commit_every: int | None
    commit_interval_ms: Milliseconds
    transaction_records: int
    transaction_timeout_ms: Milliseconds
    group_instance_id: str | None
    drain_timeout_ms: Milliseconds


class HandlerDefaults(CallOptions, total=False):
    """Options that a `Router` may give to all of its handlers."""

    start: Start
    batch: bool | int
    concurrency: int | None
    order: Order
    ack: Ack
    filter: Callable[[ConsumerRecord], bool]
    replies: bool
    max_unfinished: int


class HandlerOptions(HandlerDefaults, total=False):
    """Options of ``@bus.consumer``; `eventbus.consumer` describes them."""

    pattern: str
    name: str
    middleware: Sequence[Middleware]


class ScheduleOptions(CallOptions, total=False):
    """Options of ``@bus.every`` besides its times."""

    middleware: Sequence[Middleware]
