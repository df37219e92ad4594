"""What is known of a bus, its handlers and its log, as plain data."""

from __future__ import annotations

import msgspec


class RetryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a failing record."""

    at_once: int | None = None
    """Tries in the record's place after the first one; None: the policy does not tell."""
    delays_ms: tuple[int, ...] | None = None
    """Later tries; None: none, or a function decides."""
    decides_by_function: bool = False
    retry_topic: str | None = None
    redrive_topic: str | None = None
    """The retry topic of a handler without later tries, for letters that are redriven."""
    dead_letter_topic: str | None = None
    order: str = "none"
    crashes: int | None = None
    policy: str = ""
    """A policy that is not ours, by its repr."""


class HandlerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One handler, as it is to run."""

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
    """Of ``@bus.every``: its topic is written by the bus itself."""
    on_error: str = "stop"
    retry: RetryFacts | None = None
    problem: str = ""
    """Why its failure policy does not suit it."""
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000
    group_instance_id: str | None = None
    cooperative: bool = False
    """No partition stops that does not move."""
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
    """One function with ``@producer``."""

    name: str
    topic: str
    has_key: bool = False
    acks: str = "all"


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What its log said, or the directory that it lies in."""

    topics: dict[str, int] = {}
    """With how many partitions."""
    members: dict[str, int] = {}
    """Of groups that have any now."""
    directory: str = ""
    exists: bool = True
    writable: bool = True
    locked_by: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None
    problem: str = ""
    """Why it could not be asked."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One bus."""

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
    """Declared ones; -1: as many partitions as the log gives."""
    notes: tuple[str, ...] = ()
    """What is wrong outside of the program: unknown variables, tables of handlers that are not there."""
    problems: tuple[str, ...] = ()
    """What would keep the bus from starting, in the words of its error."""
    log: LogFacts | None = None
    """None: it was not asked."""
