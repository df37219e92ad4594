"""The interface of ``tx=``: a handler's call inside a database transaction that also stores the consumed offset.

The package outbox makes a `UnitsOfWork` of the user's engine or session factory. The runner reads the start offset of a
partition from it, and calls the handler through it; the offsets of the group in the log are then only informative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from eventbus.types import ConsumerRecord, TopicPartition


class NotHandled(Exception):
    """Raised if the database is at fault, not the record: the call does not count, and no policy is consulted.

    ``is_stopping``: the runner stops, and leaves the record to the partition's next owner. Otherwise the partition
    stops with an error.
    """

    def __init__(self, text: str, *, is_stopping: bool = False) -> None:
        super().__init__(text)
        self.is_stopping = is_stopping


class StoredOffset(NamedTuple):
    """The handled offset of a partition in a database."""

    next_offset: int
    topic_id: str
    """The topic to which the offset belongs. Empty if unknown: an earlier release or an old broker had no ids."""

    def is_of_another(self, topic_id: str) -> bool:
        """True if the offset belongs to another topic than the one with this id."""
        return bool(self.topic_id and topic_id) and self.topic_id != topic_id


class OpenUnits(Protocol):
    """Transactions for a handler of a bus. `call` may be called in several worker threads at once."""

    async def start(self) -> None:
        """Create missing tables. Raises ConfigError, and the database's errors."""
        ...

    async def stored(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Return the stored offset of each partition, if there is one. Waits for an unavailable database."""
        ...

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        """Store these ids with the topics' offsets from now on, and ignore what belongs to another topic."""
        ...

    def retried_from(self, topic_id_of: Callable[[ConsumerRecord], str]) -> None:
        """Use ``topic_id_of`` to find the original topic's id of a record from a retry topic."""
        ...

    def waiting_for(self) -> Mapping[TopicPartition, str]:
        """Return the partitions whose next record waits for the database, each with the reason."""
        ...

    def reached(self, partition: TopicPartition) -> int | None:
        """Return an offset that the database is known to have reached; None if nothing is known."""
        ...

    def doubt(self, partition: TopicPartition, below: int) -> None:
        """Record that records below this offset may have been set aside: each is handled either here or there, once."""
        ...

    async def passed(self, partition: TopicPartition, next_offset: int) -> None:
        """Record that everything below was handled or set aside, as the log shows. Database errors are logged."""
        ...

    def call(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        records: Sequence[ConsumerRecord],
        payloads: Mapping[str, Sequence[Any]],
        is_retry: bool,
    ) -> Any:
        """Call the handler in a transaction with the offset after ``records``, and commit; skip records already
        handled.

        ``payloads``: the argument that has an item for each record, of a batch handler. ``is_retry``: the record was
        set aside before, and comes from the retry topic. A coroutine for asynchronous units. Raises the handler's
        errors, after a rollback, and NotHandled.
        """
        ...

    def stop(self) -> None:
        """Stop waiting for the database: whatever is unfinished stays so."""
        ...


class UnitsOfWork(Protocol):
    """A `UnitsOfWork` made of the value of ``tx=``."""

    is_async: bool
    """True for an ``async def``; otherwise for a plain function, whose whole transaction runs in its worker thread."""

    def fills(self, annotation: Any) -> bool:
        """True if a parameter with this annotation receives the open transaction."""
        ...

    def example(self) -> str:
        """Return an example of such a parameter: "session: Session"."""
        ...

    def open(self, handler: str, group: str, parameter: str, annotation: Any) -> OpenUnits:
        """Open for a handler of a bus that starts; ``parameter`` with this annotation receives the open transaction."""
        ...


def units_of(tx: Any, where: str) -> UnitsOfWork:
    """Return the units of ``tx=``. Raises ConfigError for an object that opens no database."""
    from outbox.inbox import units_of as make  # an import from a higher layer, as in `recovery.policy_of`

    return make(tx, where)
