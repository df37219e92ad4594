"""One call of a handler with ``tx=``: over as many transactions as it takes, and who is to blame for what fails."""

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
    """What a call asks of the units of its handler."""

    handler: str
    waits: dict[TopicPartition, Wait]
    """Partitions whose next record waits for the database, before its handler is called."""

    def message_ids(self, records: Sequence[ConsumerRecord]) -> dict[int, str]: ...

    def due(
        self, connection: Connection, records: Sequence[ConsumerRecord], ids: Mapping[int, str], is_retry: bool
    ) -> list[int]: ...


class Call:
    """One call of a handler, over as many transactions as it takes."""

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
        """In this transaction: from then on the handler may be to blame for what goes wrong."""
        self._was_rolled_back = False
        self._noted: list[BaseException] = []
        """What this transaction's connection has raised."""

    def begins(self) -> dict[str, Any]:
        """A transaction; the options of its connection."""
        self._is_claimed, self._noted = False, []
        return {_NOTED: self._noted}

    def claim(self, connection: Connection) -> list[int]:
        """In a new transaction: the indexes of the records that the handler is to be called with."""
        due = self._units.due(connection, self._records, self._ids, self._is_retry)
        self._is_claimed = True
        self._units.waits.pop(self._records[0].topic_partition, None)
        if not self._was_rolled_back:
            return due
        if not due:
            first = self._records[0]
            logger.error(_COMMITTED_ITSELF, self._units.handler, first.topic_partition, first.offset)
        return []  # it was called, and undid what it did: the records are finished, and nothing of it stays

    def given(self, due: Sequence[int]) -> dict[str, Any]:
        """The handler's arguments, without the payloads of records that are handled already."""
        if len(due) == len(self._records):
            return dict(self._arguments)
        kept = {name: [payloads[index] for index in due] for name, payloads in self._payloads.items()}
        return {**self._arguments, **kept}

    def is_over(self, transaction: Any) -> bool:
        """The handler has returned. False: it rolled back, so that the claim has to be made again."""
        self._was_rolled_back = not transaction.is_active
        return not self._was_rolled_back

    @property
    def is_suspect(self) -> bool:
        """The handler went on after an error of its connection: whether the transaction lives has to be looked at."""
        return bool(self._noted)

    def look(self, connection: Connection) -> None:
        """Raises what is to be raised where an error that the handler caught has ended the transaction on the server.

        A deadlock of MySQL undoes all of it, and what follows would be stored without the claim. PostgreSQL makes a
        rollback of the commit, and says nothing.
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
        """Seconds until the next transaction. Raises the error where it stands, or `NotHandled`."""
        if isinstance(error, NotHandled):
            raise error
        if isinstance(error, WentBack):
            raise NotHandled(str(error)) from error
        if self._is_of_connection(error) and (advice := proxy_advice(error)):  # the next record would meet it, too
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
        """Not of another database that the handler asks."""
        original = getattr(error, "orig", None)
        return isinstance(error, LostRace) or any(noted is error or noted is original for noted in self._noted)


def note_errors(database: Database) -> None:
    """Have errors of the inbox's own connections noted, so that they are told from those of others."""
    from sqlalchemy import event

    if not event.contains(database.plain, "handle_error", _note):
        event.listen(database.plain, "handle_error", _note)


def _note(context: Any) -> None:
    if context.connection is not None:
        noted: list[BaseException] = context.connection.get_execution_options().get(_NOTED, [])
        noted.append(context.original_exception)


_COMMITTED_ITSELF = (
    "handler %r committed its connection itself at %s offset %d: what it wrote behind that is not stored. Leave the "
    "commit to the inbox, which commits the offset with it"
)
