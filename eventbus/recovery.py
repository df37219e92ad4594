"""The interface of failure handling: a policy such as ``dlq.Retry`` decides, and the runner executes its decisions.

The runner calls handlers again, waits, and writes: the result for a record and the offset that marks it as finished are
a single transaction, so that the record is always either done, waiting for its next try, or dead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import msgspec

from eventbus.types import ConsumerRecord, Record

if TYPE_CHECKING:
    from eventbus.delays.retry_entry import RetryEntry
    from eventbus.delays.retry_partition import RetryPartition

RetryOrder = Literal["none", "partition", "key"]
"""Which later records wait for a record with a pending retry: none, those of its partition, or those of its key."""

REDRIVEN_AT: Final = "eb-redrive-at"
"""The header with the time of the redrive of a record, in milliseconds."""
REDRIVE_HOPS: Final = "eb-redrive-hops"
"""The header that counts the redrives of a record."""
REDRIVE_BITS: Final = 48
"""The number of bits of `redrive_number`."""
_TIME_DIGITS = 13
_HOPS_BITS = 4


class Handling(msgspec.Struct, frozen=True, kw_only=True):
    """The handler to which a policy applies."""

    handler: str
    group: str
    topics: tuple[str, ...]
    """The topics that it reads by name."""
    pattern: str | None = None
    order: str = "partition"
    """The ``order=`` of the handler: "partition", "key", "none", "global"."""
    delivery: str = "at-least-once"
    client_id: str = "eventbus"

    @classmethod
    def of(cls, handler: Any, group: str, client_id: str) -> Self:
        """Return what a policy needs of a `Handler`."""
        spec = handler.spec
        return cls(
            handler=handler.__name__, group=group, topics=spec.topics, pattern=spec.pattern, order=spec.order,
            delivery=spec.delivery, client_id=client_id,
        )  # fmt: skip


class Outgoing(NamedTuple):
    """A record to be written to ``topic``."""

    topic: str
    partition: int
    """The partition, taken modulo the topic's partition count."""
    record: Record


class Again(msgspec.Struct, frozen=True):
    """Call the handler with the record again, at once."""


class WaitHere(msgspec.Struct, frozen=True):
    """Try the record again in its place after ``seconds``; later records of its partition wait.

    For errors that every record would meet, such as an open circuit: no record is at fault, so none is moved.
    """

    seconds: float
    reason: str


class Move(msgspec.Struct, frozen=True):
    """Finish the record here, once ``outgoing`` is written. The policy logs it, because it knows what may be logged."""

    outgoing: Outgoing
    kind: Literal["retry", "dead-letter"]


class Skip(msgspec.Struct, frozen=True):
    """Finish the record; its error is logged."""

    reason: str = ""


class Stop(msgspec.Struct, frozen=True):
    """Follow the handler's ``on_error``: stop the partition, log and continue, or end the bus."""


Verdict = Again | WaitHere | Move | Skip | Stop


class EveryKey(Collection[bytes | None]):
    """Contains all keys while ``waits`` returns True. `RetryPartition.holds` returns it with order "partition"."""

    def __init__(self, waits: Callable[[], bool]) -> None:
        self._waits = waits

    def __contains__(self, key: object) -> bool:
        return self._waits()

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(())

    def __len__(self) -> int:
        return int(self._waits())


class Plan(NamedTuple):
    """The state of a retry partition to commit, in one transaction with the records that entries turned into."""

    next_offset: int
    """Every entry below it is finished."""
    done: Record | None
    """A mark that lists later entries that are finished too; None if there are none."""


Waiting: TypeAlias = "RetryPartition"
Entry: TypeAlias = "RetryEntry"


class Decides(Protocol):
    """Decide what happens to records whose calls failed: the part of a policy that `InPlaceRetries` needs."""

    @property
    def retry_topic(self) -> str | None:
        """The topic that the handler's group reads in addition to its own topics; None without later tries."""
        ...

    def decide(self, record: ConsumerRecord, error: Exception, tries: int, now_ms: int) -> Verdict:
        """Decide what happens to a record whose call failed ``tries`` times in a row, here and now.

        ``record`` has its original position, even if it comes from the retry topic; then its headers contain the
        earlier tries. Pure except for statistics.
        """
        ...

    def behind(self, record: ConsumerRecord, now_ms: int) -> Outgoing:
        """Return the entry of a record that was not tried, because it waits for an earlier record of its key."""
        ...

    def admit(self, now_ms: int) -> float:
        """Return the seconds to wait before the next record may be tried; more than 0 while a circuit is open."""
        ...

    def handled(self, count: int, now_ms: int) -> None:
        """Count records that were handled without an error since the last call."""
        ...


class Recovery(Decides, Protocol):
    """A policy opened for a handler of a bus."""

    @property
    def order(self) -> RetryOrder: ...

    @property
    def dead_letter_topic(self) -> str | None: ...

    @property
    def owner(self) -> str | None:
        """The group that entries and marks contain; None for a retry topic to which no other group may write."""
        ...

    @property
    def crashes(self) -> int | None:
        """How often the process may die while it handles a record before `decide` is called with a ProcessCrashed.

        None disables the counting, so that it costs nothing.
        """
        ...

    def configs(self, topic: str) -> Mapping[str, str]:
        """Return the configs for creating the retry or the dead-letter topic."""
        ...

    def created(self, partitions: Mapping[str, int], max_message_bytes: Mapping[str, int]) -> None:
        """Record that both topics exist, with their partition counts and their largest accepted records in bytes."""
        ...

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        """Store the ids of source topics, so that entries of a deleted topic with the same name are recognised."""
        ...

    def topic_id_of(self, record: ConsumerRecord) -> str:
        """Return the id of the topic in which a record was first; empty if it is not known."""
        ...

    def waiting(self, partition: int) -> RetryPartition:
        """Return a new one, for a partition of the retry topic that was just assigned."""
        ...

    def gauges(self, now_ms: int) -> Mapping[str, float]:
        """Return the present state for metrics: names with their unit last, with one number each."""
        ...

    def depth(self, waiting: int, oldest_due_ms: int | None) -> None:
        """Report the number of waiting entries in this member's partitions, and when the first is due. For signals."""
        ...


class FailurePolicy(Protocol):
    """A value for ``@consumer(retry=...)``, such as `dlq.Retry`."""

    def open(self, handling: Handling) -> Recovery:
        """Return the policy for a handler, as its bus starts. Raises ConfigError if it does not suit the handler."""
        ...


class Tries(Protocol):
    """The number and delays of a policy's tries, as in `dlq.Retry`."""

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
    """A `FailurePolicy` that may name separate topics, such as a retry topic."""

    def under(self, prefix: str) -> FailurePolicy:
        """Return the policy with ``prefix`` before these topics, for the handlers of a router."""
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

        ``keeps_order``: whether later records can wait for the entries of ``topic``.
        """
        ...


def redrive_number(headers: Mapping[str, bytes | None]) -> int:
    """Return 0 for a record that was not redriven, and a number that rises with each redrive of the same record.

    A redriven record in a retry topic has the position of the record that failed, but it is another record: the
    position may be handled already, and an edited letter has another content.
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
