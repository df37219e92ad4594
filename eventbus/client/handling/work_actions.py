"""The policy of a `PartitionWork`, and the actions that its driver performs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from eventbus.client.handling.ordering import DONE, Fetch, Queue
from eventbus.recovery import Outgoing, RetryOrder
from eventbus.types import FetchedRecords

T = TypeVar("T")


class Singly(msgspec.Struct, frozen=True):
    """The verdict on a batch of several records: call each of them alone, so that the one at fault shows."""


class Mode(Enum):
    OPEN = "open"
    DRAINING = "draining"
    """The partition is revoked, or the handler stops: open calls end, and what is finished is committed."""
    STOPPED = "stopped"
    """A record or the log has stopped the partition. Otherwise as DRAINING."""
    LOST = "lost"
    """Another member may have the partition: open calls end, and nothing is committed."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a handler, as the machine uses them."""

    order: Literal["partition", "key", "none"] = "partition"
    delivery: Literal["at-least-once", "at-most-once", "exactly-once"] = "at-least-once"
    manual_ack: bool = False
    batch: int | None = None
    """The most records of a call that are handled together; None: a call is a run of single records."""
    call_records: int = sys.maxsize
    """The most records of a queue in one call: other queues have their turn after them."""
    slice_records: int = 500
    """The most records of a transaction, or of a commit that precedes its calls."""
    commit_every: int | None = None
    max_unfinished: int = 10_000
    """The most records begun, from the first unfinished one on."""
    max_bytes: int = sys.maxsize
    """The partition is paused while as many bytes of records are held here."""
    least_unfinished: int = 0
    """``max_bytes`` does not count below so many unfinished records: no worker is idle because of it."""
    retry_order: RetryOrder = "none"
    store_forwards_first: bool = False
    """No record is called while a forwarded one is not committed (``tx=``: its database marks all below as done)."""
    key_queues: int = 64


class BlockedKeys(Protocol):
    """Keys with a record that waits for a later try.

    The delay queue is one: it counts what is forwarded and not read back yet, and what is read and not finished. So the
    blocked keys are known in one place, and a key is free in the turn in which its last record leaves the queue.
    """

    def __len__(self) -> int: ...

    def __contains__(self, key: bytes | None, /) -> bool: ...

    def block(self, records: FetchedRecords, index: int, /) -> None:
        """The record is forwarded to wait: later ones of its key wait after it."""
        ...

    def unblock(self, records: FetchedRecords, index: int, /) -> None:
        """It is not forwarded after all."""
        ...


class Forward(NamedTuple):
    """A record that a commit writes to another topic."""

    records: FetchedRecords
    at: int
    """Its index in ``records``."""
    outgoing: Outgoing | None
    """None: it was not called, because an earlier one of its key waits; the driver makes the entry."""
    blocks: bool
    """Its key is blocked while it waits."""


class Commit(NamedTuple):
    """Store ``next_offset`` and all ``forwards``, or none of them."""

    next_offset: int
    forwards: tuple[Forward, ...] = ()
    in_transaction: bool = False
    """It belongs to the transaction that was opened for the call; otherwise it is a separate commit."""
    gives_back: int = 0
    """At most once: so many committed records were not begun, and the offset goes back to the first of them."""


class Abort(NamedTuple):
    """Abort the open transaction, and report `PartitionWork.aborted`."""


class Call:
    """Records to be called in sequence, or together as a batch.

    The driver writes ``at`` and then looks at ``end``. The machine writes ``end``, looks at ``at``, and writes ``end``
    again if ``at`` has moved. So no record that a thread has begun counts as not begun.
    """

    __slots__ = (
        "at", "called", "done", "end", "fetch", "indexes", "is_alone", "is_live", "is_open", "is_resting",
        "opens_transaction", "parts", "queue", "recalls", "records",
    )  # fmt: skip

    def __init__(
        self,
        fetch: Fetch,
        indexes: Sequence[int],
        queue: Queue,
        parts: Sequence[tuple[Queue, Sequence[int]]] = (),
        opens_transaction: bool = False,
    ) -> None:
        self.records = fetch.records
        self.indexes = indexes
        """The records, as indexes of ``records``."""
        self.at = 0
        """The position in ``indexes`` of the record whose call has begun; those before it have returned."""
        self.end = len(indexes)
        """The driver begins no record from this position on. It looks before each record; 0 once the call is closed."""
        self.called = 0
        """A thread has called the records before this position; ``at`` follows as the result of each is dealt with."""
        self.is_open = True
        """False: what comes of it is ignored."""
        self.opens_transaction = opens_transaction
        self.is_live = True
        """The records before ``at`` are handled. False: a thread writes ``at``, and its results are reported later."""
        self.is_resting = True
        """No call is in flight: the record at ``at`` was not begun, waits for its thread, or to be called again."""
        self.is_alone = False
        """The record at ``at`` is called as a batch of one, because the whole batch had failed."""
        self.recalls = 0
        """The number of repeated calls, which distinguishes a call from the call before it."""
        # For the machine.
        self.fetch = fetch
        self.queue = queue
        self.parts = parts
        """The records of each queue, if they are of several queues."""
        self.done = 0
        """The position up to which records have been reported."""

    def __len__(self) -> int:
        return len(self.indexes)

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.indexes)

    def offset(self, position: int) -> int:
        return self.records.offsets[self.indexes[position]]

    def is_done(self, index: int) -> bool:
        """Return True if a record is finished: acknowledged, while its call is open."""
        return self.fetch.states[index] == DONE

    def column(self, values: Sequence[T]) -> Sequence[T]:
        """Pick the values of these records from a column of ``records``."""
        indexes = self.indexes
        if len(indexes) == len(values):
            return values
        if isinstance(indexes, range):
            return values[indexes.start : indexes.stop]
        return [values[index] for index in indexes]

    def __repr__(self) -> str:
        offsets = self.records.offsets
        at = offsets[self.indexes[min(self.at, len(self.indexes) - 1)]]
        return f"<call {offsets[self.indexes[0]]}..{offsets[self.indexes[-1]]} at {at}>"
