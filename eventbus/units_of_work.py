"""The seam of ``tx=``: a handler's call inside a database transaction that holds the consumed offset too.

The package outbox makes a `UnitsOfWork` of the user's engine or session factory. The runner reads the start offset of a
partition from it, and calls the handler through it; the offsets of the group in the log are then only informative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from eventbus.types import ConsumerRecord, TopicPartition


class NotHandled(Exception):
    """The database is at fault, not the record: nothing of it counts, and no policy is asked what becomes of it.

    ``is_stopping``: the runner stops, and leaves the record to whoever reads the partition next. Else the partition
    stops here, loudly.
    """

    def __init__(self, text: str, *, is_stopping: bool = False) -> None:
        super().__init__(text)
        self.is_stopping = is_stopping


class StoredOffset(NamedTuple):
    """How far a partition was handled, as a database holds it."""

    next_offset: int
    topic_id: str
    """The topic in which it is an offset. Empty if it is not known: an earlier release or an old broker had no ids."""

    def is_of_another(self, topic_id: str) -> bool:
        """True if this is an offset of another topic than the one with this id."""
        return bool(self.topic_id and topic_id) and self.topic_id != topic_id


class OpenUnits(Protocol):
    """Of one handler of one bus. `call` may be called in several worker threads at once."""

    async def start(self) -> None:
        """Make the tables where they are missing. Raises ConfigError, and what the database raises."""
        ...

    async def stored(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Return what is stored for each partition; absent means nothing. Waits for a database that is away."""
        ...

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        """Store these ids with the offsets of the topics from now on, and claim nothing that is of another topic."""
        ...

    def retried_from(self, topic_id_of: Callable[[ConsumerRecord], str]) -> None:
        """Call ``topic_id_of`` for the id of the topic in which a record of a retry topic stood first."""
        ...

    def waiting_for(self) -> Mapping[TopicPartition, str]:
        """Return the partitions whose next record waits for the database, each with the reason."""
        ...

    def reached(self, partition: TopicPartition) -> int | None:
        """The database is known to have this offset, or a later one; None: nothing is known."""
        ...

    def doubt(self, partition: TopicPartition, below: int) -> None:
        """Records below this offset may have been set aside for a later try: they are handled here or there, once."""
        ...

    async def passed(self, partition: TopicPartition, next_offset: int) -> None:
        """Everything below was handled or set aside, and the log knows it. What the database raises is logged."""
        ...

    def call(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        records: Sequence[ConsumerRecord],
        payloads: Mapping[str, Sequence[Any]],
        is_retry: bool,
    ) -> Any:
        """Call the handler in a transaction with the offset behind ``records``, and commit; not for those handled.

        ``payloads``: the argument that has one item for each record, of a batch handler. ``is_retry``: the record was
        set aside before, and comes from the retry topic. Of asynchronous units this is a coroutine. Raises what the
        handler raises, when all is rolled back, and NotHandled.
        """
        ...

    def stop(self) -> None:
        """Wait for no database any more: whatever is unfinished stays so."""
        ...


class UnitsOfWork(Protocol):
    """What ``tx=`` has become."""

    is_async: bool
    """For an ``async def``; else for a plain function, whose whole transaction runs in its worker thread."""

    def fills(self, annotation: Any) -> bool:
        """A parameter of this annotation is given the open transaction."""
        ...

    def example(self) -> str:
        """A parameter that it fills, as in "session: Session"."""
        ...

    def open(self, handler: str, group: str, parameter: str, annotation: Any) -> OpenUnits:
        """For one handler of a bus that starts; ``parameter``, annotated so, gets the open transaction."""
        ...


def units_of(tx: Any, where: str) -> UnitsOfWork:
    """Return the units of ``tx=``. Raises ConfigError for an object that opens no database."""
    from outbox.inbox import units_of as make  # it points upwards, as the import in `recovery.policy_of`

    return make(tx, where)
