"""The transactions of one handler with ``tx=``: claim, call, commit, and what to do when one of them fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio

from eventbus.errors import ConfigError
from eventbus.types import ConsumerRecord, TopicPartition
from outbox.claims import Claims, id_of_message, id_of_record
from outbox.database import Database
from outbox.tracing import carried
from outbox.tries import Tries

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

logger = logging.getLogger("outbox")

MessageId = Callable[[ConsumerRecord], "str | None"]
"""What a message's sender calls it; None: nothing."""
_PURGE_SECONDS = 3_600.0


class Units:
    """The transactions of one handler."""

    def __init__(
        self,
        database: Database,
        claims: Claims,
        handler: str,
        parameter: str,
        factory: Any,
        message_id: MessageId | None,
        keep_ms: int,
        *,
        creates: bool,
    ) -> None:
        """``factory``: makes the session; None: the handler takes the connection."""
        self._database = database
        self._claims = claims
        self.handler = handler
        self._parameter = parameter
        self._factory = factory
        self._message_id = message_id
        self._keep_ms = keep_ms
        self._creates = creates
        self._doubtful: dict[TopicPartition, int] = {}
        self._stopped = threading.Event()
        self._purge_at = 0.0

    async def start(self) -> None:
        """Make the tables where they are missing. Raises ConfigError, and what the database raises."""
        from sqlalchemy.exc import DBAPIError

        if self._creates:
            try:
                await self._database.run(self._claims.create)
            except DBAPIError:  # several create them at once, or nobody may
                if await self._database.run(self._claims.missing):
                    raise
            return
        missing = await self._database.run(self._claims.missing)
        if missing:
            raise ConfigError(
                f"handler {self.handler!r}: there is no table {', '.join(missing)}, and create_tables=False: have "
                "somebody create it, or leave create_tables out"
            )

    async def stored(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset that is stored for each partition. Waits for a database that is away."""
        tries = Tries(f"handler {self.handler!r}")
        while True:
            try:
                found = await self._database.run(self._claims.stored, partitions) if partitions else {}
                break
            except Exception as error:  # what it means is for `Tries` to say; what it cannot outlast goes on
                seconds = tries.pause_after(error, may_wait=True)
                if seconds is None:
                    raise
                await anyio.sleep(seconds)
        for partition in partitions:
            self._doubtful.pop(partition, None)
        return found

    def doubt(self, partition: TopicPartition, below: int) -> None:
        """Records below this offset may wait for a later try too: they are handled here or there, once."""
        self._doubtful[partition] = below

    async def passed(self, partition: TopicPartition, next_offset: int) -> None:
        """Everything below was handled or set aside. What the database raises is logged."""
        try:
            await self._database.run(self._claims.passed, partition, next_offset)
        except Exception as error:  # the next record that is handled says so too
            logger.debug("handler %r: %s: %s", self.handler, partition, error)

    def stop(self) -> None:
        """Wait for no database any more."""
        self._stopped.set()

    # in a transaction ------------------------------------------------------------------------------------------------

    def due(self, connection: Connection, records: Sequence[ConsumerRecord], is_retry: bool) -> list[int]:
        """Claim them; the indexes of those that are to be handled in this transaction. Raises LostRace."""
        if is_retry:
            return [
                index for index, one in enumerate(records)
                if self._claims.claim_id(connection, id_of_record(one)) and self._is_new(connection, one)
            ]  # fmt: skip
        first, last = records[0], records[-1]
        partition = first.topic_partition
        start = self._claims.claim(connection, partition, first.offset, last.next_offset)
        doubtful = self._doubtful.get(partition, 0)
        return [
            index for index, one in enumerate(records)
            if one.offset >= start
            and (one.offset >= doubtful or self._claims.claim_id(connection, id_of_record(one)))
            and self._is_new(connection, one)
        ]  # fmt: skip

    def _is_new(self, connection: Connection, record: ConsumerRecord) -> bool:
        """Its message was not seen before. Raises LostRace."""
        text = None if self._message_id is None else self._message_id(record)
        return text is None or self._claims.claim_id(connection, id_of_message(text))

    def _purge_is_due(self) -> bool:
        """Message ids are forgotten once in an hour."""
        now = time.monotonic()
        if self._message_id is None or now < self._purge_at:
            return False
        self._purge_at = now + _PURGE_SECONDS
        return True

    def _purge(self, connection: Connection) -> None:
        self._claims.forget_messages(connection, self._keep_ms)

    def _session(self, connection: Any) -> Any:
        """What the handler gets. A session neither commits nor ends the connection's transaction; it may undo it."""
        if self._factory is None:
            return connection
        return self._factory(bind=connection, join_transaction_mode="rollback_only")


class _Call:
    """One call of a handler, over as many transactions as it takes."""

    def __init__(
        self,
        units: Units,
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
        self._tries = Tries(f"handler {units.handler!r}")
        self._is_claimed = False
        """In this transaction: from then on the handler may be to blame for what goes wrong."""
        self._was_rolled_back = False

    def claim(self, connection: Connection) -> list[int]:
        """In a new transaction: the indexes of the records that the handler is to be called with."""
        self._is_claimed = False
        due = self._units.due(connection, self._records, self._is_retry)
        self._is_claimed = True
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

    def pause_after(self, error: Exception) -> float | None:
        """Seconds until the next transaction; None: the error stands."""
        return self._tries.pause_after(error, may_wait=not self._is_claimed)


class BlockingUnits(Units):
    """Of a plain engine: a whole transaction in the handler's worker thread."""

    def call(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        records: Sequence[ConsumerRecord],
        payloads: Mapping[str, Sequence[Any]],
        is_retry: bool,
    ) -> Any:
        """Call the handler in a transaction with the offset behind ``records``, and commit."""
        call = _Call(self, arguments, records, payloads, is_retry)
        token = carried.set(records[-1].headers)
        try:
            while True:
                try:
                    is_over, result = self._once(call, function)
                except Exception as error:  # the handler's, or the database's: `Tries` tells which is tried again
                    seconds = call.pause_after(error)
                    if seconds is None or self._stopped.wait(seconds):
                        raise
                    continue
                if is_over:
                    break
        finally:
            carried.reset(token)
        if self._purge_is_due():
            self._database.run_here(self._purge)
        return result

    def _once(self, call: _Call, function: Callable[..., Any]) -> tuple[bool, Any]:
        """False: the handler rolled back."""
        result = None
        with self._database.plain.connect() as connection, connection.begin() as transaction:
            due = call.claim(connection)
            if due:
                opened = self._session(connection)
                try:
                    result = function(**call.given(due), **{self._parameter: opened})
                    if opened is not connection and transaction.is_active:
                        opened.commit()  # what is only in its memory goes to the connection
                finally:
                    if opened is not connection:
                        opened.close()
                if not call.is_over(transaction):
                    return False, result
            transaction.commit()
        return True, result


class AsynchronousUnits(Units):
    """Of an asynchronous engine: on the event loop."""

    async def call(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        records: Sequence[ConsumerRecord],
        payloads: Mapping[str, Sequence[Any]],
        is_retry: bool,
    ) -> Any:
        """Call the handler in a transaction with the offset behind ``records``, and commit."""
        call = _Call(self, arguments, records, payloads, is_retry)
        token = carried.set(records[-1].headers)
        try:
            while True:
                try:
                    is_over, result = await self._once(call, function)
                except Exception as error:  # the handler's, or the database's: `Tries` tells which is tried again
                    seconds = call.pause_after(error)
                    if seconds is None:
                        raise
                    await anyio.sleep(seconds)
                    continue
                if is_over:
                    break
        finally:
            carried.reset(token)
        if self._purge_is_due():
            await self._database.run(self._purge)
        return result

    async def _once(self, call: _Call, function: Callable[..., Any]) -> tuple[bool, Any]:
        """False: the handler rolled back."""
        result = None
        engine = cast("AsyncEngine", self._database.engine)
        async with engine.connect() as connection, connection.begin() as transaction:
            due = await connection.run_sync(call.claim)
            if due:
                opened = self._session(connection)
                try:
                    result = await function(**call.given(due), **{self._parameter: opened})
                    if opened is not connection and transaction.is_active:
                        await opened.commit()  # what is only in its memory goes to the connection
                finally:
                    if opened is not connection:
                        with anyio.CancelScope(shield=True):
                            await opened.close()
                if not call.is_over(transaction):
                    return False, result
            with anyio.CancelScope(shield=True):
                await transaction.commit()
        return True, result


_COMMITTED_ITSELF = (
    "handler %r committed its connection itself at %s offset %d: what it wrote behind that is not stored. Leave the "
    "commit to the inbox, which commits the offset with it"
)
