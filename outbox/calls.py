"""One call of a handler with ``tx=``: its transactions, their retries, and the classification of errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from eventbus.client.handling.waits import Wait, tried
from eventbus.types import ConsumerRecord, TopicPartition
from eventbus.units_of_work import NotHandled
from outbox.claims import LostRace, WentBack
from outbox.database import Database, proxy_advice
from outbox.tries import Tries

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

logger = logging.getLogger("outbox")

_NOTED = "eventbus_inbox_noted"


class Claiming(Protocol):
    """The methods of a handler's `Units` that a call needs."""

    handler: str
    waits: dict[TopicPartition, Wait]
    """Partitions whose next record waits for the database before its handler is called."""

    def message_ids(self, records: Sequence[ConsumerRecord]) -> dict[int, str]: ...

    def due(
        self, connection: Connection, records: Sequence[ConsumerRecord], ids: Mapping[int, str], is_retry: bool
    ) -> list[int]: ...


class Call:
    """One call of a handler, retried over as many transactions as necessary."""

    def __init__(
        self,
        units: Claiming,
        arguments: Mapping[str, Any],
        records: Sequence[ConsumerRecord],
        payloads: Mapping[str, Sequence[Any]],
        is_retry: bool,
    ) -> None:
        self._units = units
        self._arguments = arguments
        self._records = records
        self._payloads = payloads
        self._is_retry = is_retry
        self._ids = units.message_ids(records)
        self._tries = Tries(f"handler {units.handler!r}")
        self._is_claimed = False
        """True once the records are claimed in this transaction. From then on the handler may cause errors.
        """
        self._was_rolled_back = False
        self._noted: list[BaseException] = []
        """Errors raised by this transaction's connection."""

    def begins(self) -> dict[str, Any]:
        """Begin a transaction. Return the execution options of its connection."""
        self._is_claimed, self._noted = False, []
        return {_NOTED: self._noted}

    def claim(self, connection: Connection) -> list[int]:
        """Claim the records in a new transaction. Return the indexes of those to pass to the handler."""
        due = self._units.due(connection, self._records, self._ids, self._is_retry)
        self._is_claimed = True
        self._units.waits.pop(self._records[0].topic_partition, None)
        if not self._was_rolled_back:
            return due
        if not due:
            first = self._records[0]
            logger.error(_COMMITTED_ITSELF, self._units.handler, first.topic_partition, first.offset)
        return []  # The handler was called and rolled its work back. The records are finished, without any effect.

    def given(self, due: Sequence[int]) -> dict[str, Any]:
        """Return the handler's arguments, without the payloads of records that were handled before."""
        if len(due) == len(self._records):
            return dict(self._arguments)
        kept = {name: [payloads[index] for index in due] for name, payloads in self._payloads.items()}
        return {**self._arguments, **kept}

    def is_over(self, transaction: Any) -> bool:
        """True if the call has finished. False if the handler rolled back, so that the claim must be made again."""
        self._was_rolled_back = not transaction.is_active
        return not self._was_rolled_back

    @property
    def is_suspect(self) -> bool:
        """True if the handler continued after an error of its connection, so the transaction may be rolled back."""
        return bool(self._noted)

    def look(self, connection: Connection) -> None:
        """Raise if an error that the handler caught has ended the transaction on the server.

        A deadlock on MySQL rolls the transaction back, so later statements would be committed without the claim.
        PostgreSQL turns the commit into a rollback, without an error.
        """
        from sqlalchemy.exc import DBAPIError

        caught = self._noted[0]
        try:
            lost = self._units.due(connection, self._records, self._ids, self._is_retry)
        except DBAPIError:
            raise RuntimeError(
                "the handler went on after an error of its database, which had ended its transaction: put what may "
                f"fail into a savepoint, `with session.begin_nested():`; the error was: {caught}"
            ) from caught
        if lost:
            raise LostRace(f"its transaction was rolled back by the database: {caught}") from caught

    def pause_after(self, error: Exception) -> float:
        """Return the seconds until the next transaction. Raises the error if it is final, or `NotHandled`."""
        if isinstance(error, NotHandled):
            raise error
        if isinstance(error, WentBack):
            raise NotHandled(str(error)) from error
        # The next record would fail in the same way.
        if self._is_of_connection(error) and (advice := proxy_advice(error)):
            raise NotHandled(f"{advice}: {error}") from error
        if not self._is_claimed:
            seconds = self._tries.pause_after(error, may_wait=True)
            if seconds is None:
                raise NotHandled(f"its database does not take the record's offset: {error}") from error
            partition, waits = self._records[0].topic_partition, self._units.waits
            reason = f"the database of tx=: {error}".partition("\n")[0]
            waits[partition] = tried(waits.get(partition), reason, time.monotonic())
            return seconds
        seconds = self._tries.pause_after(error, may_wait=False) if self._is_of_connection(error) else None
        if seconds is None:
            raise error
        return seconds

    def _is_of_connection(self, error: Exception) -> bool:
        """True if the error came from the transaction's connection, not from another database that the handler uses."""
        original = getattr(error, "orig", None)
        return isinstance(error, LostRace) or any(noted is error or noted is original for noted in self._noted)


def note_errors(database: Database) -> None:
    """Record errors of the inbox's own connections, to distinguish them from those of other connections."""
    from sqlalchemy import event

    if not event.contains(database.plain, "handle_error", _note):
        event.listen(database.plain, "handle_error", _note)


def _note(context: Any) -> None:
    if context.connection is not None:
        noted: list[BaseException] = context.connection.get_execution_options().get(_NOTED, [])
        noted.append(context.original_exception)


_COMMITTED_ITSELF = (
    "handler %r committed its connection itself at %s offset %d: what it wrote after that is not stored. Leave the "
    "commit to the inbox, which commits the offset with it"
)
