"""Facts about a bus, its handlers and its log, as plain data."""

from __future__ import annotations

import msgspec


class RetryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The handling of failing records."""

    at_once: int | None = None
    """Tries in the record's place after the first; None if the policy does not show them."""
    delays_ms: tuple[int, ...] | None = None
    """Delays of later tries; None if there are none, or if a function decides."""
    decides_by_function: bool = False
    retry_topic: str | None = None
    redrive_topic: str | None = None
    """The retry topic of a handler without later tries, for redriven letters."""
    dead_letter_topic: str | None = None
    order: str = "none"
    crashes: int | None = None
    policy: str = ""
    """The repr of a custom policy."""


class HandlerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The effective options of a handler."""

    name: str
    place: str = ""
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    group: str = ""
    group_is_said: bool = True
    publishes: str | None = None
    takes_transaction: bool = False
    order: str = "partition"
    concurrency: int | None = None
    delivery: str = "at-least-once"
    ack: str = "auto"
    is_async: bool = True
    batch: bool = False
    timeout_seconds: float | None = None
    commit_every: int | None = None
    commit_interval_ms: int = 100
    max_unfinished: int = 10_000
    transaction_records: int = 500
    transaction_timeout_ms: int = 60_000
    drain_timeout_ms: int = 30_000
    tx: bool = False
    is_firing: bool = False
    """True for ``@bus.every``, whose topic is written by the bus itself."""
    on_error: str = "stop"
    retry: RetryFacts | None = None
    problem: str = ""
    """Why its failure policy does not suit it."""
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000
    group_instance_id: str | None = None
    cooperative: bool = False
    """True if only partitions that move stop in a rebalance."""
    starts_at: str = "earliest"
    blocking_calls: tuple[str, ...] = ()
    """Calls in its body that block the event loop, each with its line."""

    @property
    def reads(self) -> str:
        return ", ".join(self.topics) or f"/{self.pattern}/"

    @property
    def is_ordered(self) -> bool:
        return self.order in ("partition", "global")


class ProducerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A function with ``@producer``."""

    name: str
    topic: str
    has_key: bool = False
    acks: str = "all"


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts from the log, or the directory in which it is."""

    topics: dict[str, int] = {}
    """Partition counts by topic."""
    members: dict[str, int] = {}
    """Member counts of groups that have any now."""
    directory: str = ""
    exists: bool = True
    writable: bool = True
    locked_by: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None
    problem: str = ""
    """Why the log could not be examined."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about a bus."""

    url: str
    scheme: str = "file"
    client_id: str = "eventbus"
    acks: str = "all"
    fsync: str = "commit"
    fsync_interval_ms: int = 100
    auto_create_topics: bool = False
    slow_loop_ms: int | None = 1_000
    security_protocol: str = ""
    mechanism: str = ""
    verifies_certificates: bool = True
    secret_in_url: bool = False
    handlers: tuple[HandlerFacts, ...] = ()
    producers: tuple[ProducerFacts, ...] = ()
    topics: dict[str, int] = {}
    """Declared topics; -1: the partition count is the log's default."""
    notes: tuple[str, ...] = ()
    """Faults outside of the program: unknown variables, tables for handlers that do not exist."""
    problems: tuple[str, ...] = ()
    """Errors that would prevent the bus from starting."""
    log: LogFacts | None = None
    """None if the log was not examined."""
