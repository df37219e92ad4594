"""The seam of failure handling: what a policy such as ``dlq.Retry`` is asked, and what the runner makes of the answers.

A policy only decides. The runner calls handlers again, waits, and writes: what becomes of a record and the offset that
says it is finished are one transaction, so that it is exactly one of done, waiting for its next try, or dead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from eventbus.types import ConsumerRecord, Record

if TYPE_CHECKING:
    from eventbus.delays.retry_entry import RetryEntry
    from eventbus.delays.retry_partition import RetryPartition

RetryOrder = Literal["none", "partition", "key"]
"""Which later records wait for one that waits for its next try: none, those of its partition, or those of its key."""

REDRIVEN_AT: Final = "eb-redrive-at"
"""The header of a redriven record with the time of the redrive, in milliseconds."""
REDRIVE_HOPS: Final = "eb-redrive-hops"
"""The header of a redriven record that counts its redrives."""
REDRIVE_BITS: Final = 48
"""The size of `redrive_number`."""
_TIME_DIGITS = 13
_HOPS_BITS = 4


class Handling(msgspec.Struct, frozen=True, kw_only=True):
    """Whose failures a policy is asked about."""

    handler: str
    group: str
    topics: tuple[str, ...]
    """Those it reads by name."""
    pattern: str | None = None
    order: str = "partition"
    """``order=`` of the handler: "partition", "key", "none", "global"."""
    delivery: str = "at-least-once"
    client_id: str = "eventbus"


class Outgoing(NamedTuple):
    """A record to be written to ``topic``."""

    topic: str
    partition: int
    """Counted modulo the partitions that the topic has."""
    record: Record


class Again(msgspec.Struct, frozen=True):
    """Call the handler with the record again, at once."""


class WaitHere(msgspec.Struct, frozen=True):
    """Try the record again in its place after ``seconds``; nothing behind it in its partition is begun meanwhile.

    For trouble that every record would meet, as an open circuit: no record is to blame, none is moved.
    """

    seconds: float
    reason: str


class Move(msgspec.Struct, frozen=True):
    """The record is finished here, once ``outgoing`` is written. The policy logs it, for it knows what may be told."""

    outgoing: Outgoing
    kind: Literal["retry", "dead-letter"]


class Skip(msgspec.Struct, frozen=True):
    """The record is finished; its error is logged."""

    reason: str = ""


class Stop(msgspec.Struct, frozen=True):
    """What the handler's ``on_error`` says: stop the partition, log and go on, or end the bus."""


Verdict = Again | WaitHere | Move | Skip | Stop


class EveryKey(Collection[bytes | None]):
    """All keys, as long as ``waits`` returns True. `RetryPartition.holds` returns it with order "partition"."""

    def __init__(self, waits: Callable[[], bool]) -> None:
        self._waits = waits

    def __contains__(self, key: object) -> bool:
        return self._waits()

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(())

    def __len__(self) -> int:
        return int(self._waits())


class Plan(NamedTuple):
    """What is to be committed of a retry partition, in one transaction with the records that entries turned into."""

    next_offset: int
    """Everything below it is finished."""
    done: Record | None
    """Says which entries from there on are finished too; None where there are none that it would have to tell."""


Waiting: TypeAlias = "RetryPartition"
Entry: TypeAlias = "RetryEntry"


class Decides(Protocol):
    """Decide what happens to records whose calls failed: the part of a policy that `Retries` needs."""

    @property
    def retry_topic(self) -> str | None:
        """Read by the handler's group beside its own topics; None where nothing is tried later."""
        ...

    def decide(self, record: ConsumerRecord, error: Exception, tries: int, now_ms: int) -> Verdict:
        """What becomes of a record whose call failed ``tries`` times in a row, here and now.

        ``record`` stands where it was read first, also when it comes from the retry topic; then its headers tell of
        the tries before. Pure except for what it counts.
        """
        ...

    def behind(self, record: ConsumerRecord, now_ms: int) -> Outgoing:
        """The entry of a record that was not tried: it waits behind an earlier one of its key."""
        ...

    def admit(self, now_ms: int) -> float:
        """Seconds to wait before the next record may be tried; 0: now. An open circuit answers more than 0."""
        ...

    def handled(self, count: int, now_ms: int) -> None:
        """So many records were handled without an error, since the last time this was said."""
        ...


class Recovery(Decides, Protocol):
    """A policy at work for one handler of one bus."""

    @property
    def order(self) -> RetryOrder: ...

    @property
    def dead_letter_topic(self) -> str | None: ...

    @property
    def owner(self) -> str | None:
        """The group that entries and marks name; None for a retry topic that no other group may write to."""
        ...

    @property
    def crashes(self) -> int | None:
        """How often the process may die while it handles a record before `decide` is asked about a ProcessCrashed.

        None: nobody counts, which costs nothing.
        """
        ...

    def configs(self, topic: str) -> Mapping[str, str]:
        """Of one of the two, when it is created."""
        ...

    def created(self, partitions: Mapping[str, int], max_message_bytes: Mapping[str, int]) -> None:
        """Both topics are there, with so many partitions, and take records up to so many bytes."""
        ...

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        """Note the ids of source topics. Entries of an earlier topic with the same name are not mistaken for theirs."""
        ...

    def topic_id_of(self, record: ConsumerRecord) -> str:
        """Return the id of the topic in which a record stood first; empty if it is not known."""
        ...

    def waiting(self, partition: int) -> RetryPartition:
        """A new one, for a partition of the retry topic that was just assigned."""
        ...

    def gauges(self, now_ms: int) -> Mapping[str, float]:
        """How things stand, for metrics: names with their unit last, of one number each."""
        ...

    def depth(self, waiting: int, oldest_due_ms: int | None) -> None:
        """So many entries wait in this member's partitions; when the first of them is due. For signals."""
        ...


class FailurePolicy(Protocol):
    """What ``@consumer(retry=...)`` takes: `dlq.Retry` is one."""

    def open(self, handling: Handling) -> Recovery:
        """For one handler, as its bus starts. Raises ConfigError for a handler that it does not suit."""
        ...


class Tries(Protocol):
    """How often and when a policy tries a record again, as `dlq.Retry` has it."""

    @property
    def immediate(self) -> int: ...

    @property
    def delays_ms(self) -> tuple[int, ...] | None: ...

    @property
    def delay_function(self) -> Callable[..., Any] | None: ...


@runtime_checkable
class ShowsTries(Protocol):
    """A `FailurePolicy` whose tries can be shown before it is opened."""

    @property
    def retry(self) -> Tries: ...


@runtime_checkable
class NamesTopics(Protocol):
    """A `FailurePolicy` that may name topics of its own, as a retry topic."""

    def under(self, prefix: str) -> FailurePolicy:
        """The same with ``prefix`` before these topics: for the handlers of a router."""
        ...


@runtime_checkable
class DrainsRetries(Protocol):
    """A `FailurePolicy` that can read a retry topic of an earlier release to its end."""

    def retry_topic(self, group: str) -> str | None:
        """Return the topic in which failed records of a group wait, or None without later tries."""
        ...

    def is_redriven(self, group: str) -> bool:
        """Return whether dead letters of a group may come back through a retry topic named after it."""
        ...

    def draining(self, topic: str, *, keeps_order: bool) -> FailurePolicy:
        """Return the policy with ``topic`` as its retry topic, for a policy without later tries.

        ``keeps_order``: whether later records can wait behind the entries of ``topic``.
        """
        ...


def redrive_number(headers: Mapping[str, bytes | None]) -> int:
    """Return 0 for a record that was not redriven, and a number that rises with each redrive of the same record.

    A redriven record in a retry topic has the place of the record that failed, but it is another record: the place may
    be handled already, and an edited letter has another content.
    """
    at_ms, hops = headers.get(REDRIVEN_AT), headers.get(REDRIVE_HOPS)
    if at_ms is None or len(at_ms) > _TIME_DIGITS or not at_ms.isdigit():
        return 0
    count = int(hops) if hops is not None and len(hops) < _TIME_DIGITS and hops.isdigit() else 0
    return int(at_ms) << _HOPS_BITS | count % (1 << _HOPS_BITS)


def retry_topic_of(group: str) -> str:
    """Return the retry topic of a group whose policy names none."""
    return f"retry.{group}"


def redrive_topic_of(policy: FailurePolicy, group: str) -> str | None:
    """Return the retry topic through which only redriven letters come, because the policy has no later tries.

    It is created for a handler that is alone in its group. None without later tries and without dead letters.
    """
    if isinstance(policy, DrainsRetries) and policy.retry_topic(group) is None and policy.is_redriven(group):
        return retry_topic_of(group)
    return None


def policy_of(retry: Any, dead_letter: Any, where: str) -> FailurePolicy | None:
    """Return the policy of ``retry=`` and ``dead_letter=``, or None without either. Raises ConfigError."""
    if (retry is None or retry is False) and dead_letter in (None, False):
        return None
    # This import and the one in `units_of_work` point upwards, because `retry=True`, `retry=3` and `dead_letter=True`
    # mean a policy of dlq. dlq imports this module, so the import must wait until a handler is declared.
    from dlq.policy import policy_of as make

    return make(retry, dead_letter, where)
