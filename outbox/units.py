"""The transactions of a handler with ``tx=``: claim the records, call the handler, commit, and handle failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import anyio

from eventbus.client.handling.waits import Wait
from eventbus.errors import ConfigError, EventBusError
from eventbus.types import ConsumerRecord, TopicPartition
from eventbus.units_of_work import NotHandled, StoredOffset
from outbox.autocommit import AUTOCOMMIT, is_autocommit
from outbox.calls import Call, note_errors
from outbox.claims import Claims, id_of_message, id_of_record
from outbox.database import Database, proxy_advice, trouble_of
from outbox.tracing import carried
from outbox.tries import Tries

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncEngine

logger = logging.getLogger("outbox")

MessageId = Callable[[ConsumerRecord], "str | None"]
"""Returns the id that a message's sender gave it, or None."""
_IDS_PER_PURGE = 500
"""Once this many ids were added, up to twice as many old ones are deleted, so that deletions stay small and keep up."""
_PURGE_AFTER_SECONDS = 3_600.0
"""After a long outage, records handled but not committed in the log are read again, and their ids are needed.
"""
_MOST_CREATIONS = 5


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
        """``factory`` creates the session; None if the handler takes the connection."""
        self._database = database
        self._claims = claims
        self.handler = handler
        self._parameter = parameter
        self._factory = factory
        self._message_id = message_id
        self._keep_ms = keep_ms
        self._creates = creates
        self._doubtful: dict[TopicPartition, int] = {}
        self.waits: dict[TopicPartition, Wait] = {}
        """Partitions whose next record waits for the database. Times are those of `time.monotonic`."""
        self._reached: dict[TopicPartition, int] = {}
        """Offsets known to be stored in the database, because they were committed or read."""
        self._topic_ids: Mapping[str, str] = {}
        """Ids of the topics that the handler reads."""
        self._topic_id_of: Callable[[ConsumerRecord], str] = lambda record: self._topic_ids.get(record.topic, "")
        self._stopped = threading.Event()
        self._ids_added = 0
        self._purge_at = time.monotonic() + _PURGE_AFTER_SECONDS
        note_errors(database)

    async def start(self) -> None:
        """Create missing tables. Raises ConfigError, and what the database raises.

        Raises EventBusError if the database does not answer: a service that cannot work does not start.
        """
        from sqlalchemy.exc import DBAPIError

        try:
            await self._start()
        except DBAPIError as error:
            if advice := proxy_advice(error):
                raise ConfigError(f"Handler {self.handler!r} cannot use the engine of tx=. {advice}") from error
            if trouble_of(error) != "away":
                raise
            url = self._database.plain.url.render_as_string()
            raise EventBusError(
                f"handler {self.handler!r}: its database {url} does not answer: {error.orig}; start again when it does"
            ) from error

    async def _start(self) -> None:
        if await self._database.run_at_users_level(is_autocommit):
            raise ConfigError(f"handler {self.handler!r}: {AUTOCOMMIT}")
        if self._creates:
            await self._create()
        missing = await self._database.run(self._claims.missing)
        if missing:
            why = "It was created, and is not visible now" if self._creates else "create_tables=False"
            raise ConfigError(
                f"Handler {self.handler!r} has no table {', '.join(missing)}. {why}. Create it with op.create_inbox() "
                "or with what `eventbus outbox ddl --inbox` prints, in the schema that the engine of tx= uses"
            )
        upgrade = await self._database.run(self._claims.missing_column)
        if upgrade is not None:
            raise ConfigError(
                f"Handler {self.handler!r} cannot use the table {self._claims.offsets.name}. An earlier release made "
                f"it, without the topic's id next to its offsets. Add the column: {upgrade}"
            )

    async def _create(self) -> None:
        from sqlalchemy.exc import DBAPIError

        for left in reversed(range(_MOST_CREATIONS)):
            try:
                await self._database.run(self._claims.create)
                return
            # Another process creates them concurrently, or this user may not create tables and they exist.
            except DBAPIError:
                if not await self._database.run(self._claims.missing):
                    return
                if not left:
                    raise

    def assigned(self, topic_ids: Mapping[str, str]) -> None:
        """Set the topic ids to store with offsets from now on."""
        self._topic_ids = {**self._topic_ids, **topic_ids}

    def retried_from(self, topic_id_of: Callable[[ConsumerRecord], str]) -> None:
        """Set the function that returns the topic id of a retried record, whose topic may be deleted by then."""
        self._topic_id_of = topic_id_of

    async def stored(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Return what is stored for each partition. Waits while the database is down."""
        tries = Tries(f"handler {self.handler!r}")
        while True:
            try:
                found = await self._database.run(self._claims.stored, partitions) if partitions else {}
                break
            except Exception as error:  # `Tries` decides which errors are retried
                seconds = tries.pause_after(error, may_wait=True)
                if seconds is None:
                    raise
                await anyio.sleep(seconds)
        for partition in partitions:
            for of_partitions in (self._doubtful, self._reached, self.waits):
                of_partitions.pop(partition, None)
        self._reached.update({partition: one.next_offset for partition, one in found.items()})
        return found

    def waiting_for(self) -> dict[TopicPartition, str]:
        """Return the partitions that wait for the database, each with the reason."""
        now = time.monotonic()
        return {partition: wait.text(now) for partition, wait in self.waits.copy().items() if wait.is_long(now)}

    def reached(self, partition: TopicPartition) -> int | None:
        """Return an offset that the database is known to have reached, or None."""
        return self._reached.get(partition)

    def doubt(self, partition: TopicPartition, below: int) -> None:
        """Track records below this offset by id: they may also wait for a retry, and must be handled once."""
        self._doubtful[partition] = below

    async def passed(self, partition: TopicPartition, next_offset: int) -> None:
        """Store that all records below ``next_offset`` are handled or moved to a retry topic. Errors are logged."""
        try:
            known, topic_id = self._reached.get(partition), self._topic_ids.get(partition.topic, "")
            await self._database.run(self._claims.passed, partition, next_offset, known, topic_id)
        except Exception as error:  # the next record's transaction reports it
            logger.debug("handler %r: %s: %s", self.handler, partition, error)
        else:
            self._has_reached(partition, next_offset)

    def stop(self) -> None:
        """Stop waiting for the database."""
        self._stopped.set()

    def _has_reached(self, partition: TopicPartition, next_offset: int) -> None:
        self._reached[partition] = max(self._reached.get(partition, 0), next_offset)

    # in a transaction ------------------------------------------------------------------------------------------------

    def message_ids(self, records: Sequence[ConsumerRecord]) -> dict[int, str]:
        """Return the senders' ids of these records by index. Raises TypeError, and what the user's function raises."""
        if self._message_id is None:
            return {}
        ids: dict[int, str] = {}
        for index, record in enumerate(records):
            text: Any = self._message_id(record)
            if text is None or text == "":
                continue
            if not isinstance(text, str):
                raise TypeError(f"message_ids returned {text!r:.80}, and an id is a str, or None where there is none")
            ids[index] = id_of_message(text)
        return ids

    def due(
        self, connection: Connection, records: Sequence[ConsumerRecord], ids: Mapping[int, str], is_retry: bool
    ) -> list[int]:
        """Claim records. Return the indexes of those to handle in this transaction. Raises LostRace or WentBack."""
        due, marked = list(range(len(records))), dict[int, str]()
        if is_retry:
            marked = {index: id_of_record(record, self._topic_id_of(record)) for index, record in enumerate(records)}
        else:
            partition = records[0].topic_partition
            known, doubtful = self._reached.get(partition), self._doubtful.get(partition, 0)
            topic_id = self._topic_ids.get(partition.topic, "")
            first, next_offset = records[0].offset, records[-1].next_offset
            start = self._claims.claim(connection, partition, first, next_offset, known, topic_id)
            due = [index for index in due if records[index].offset >= start]
            marked = {
                index: id_of_record(records[index], topic_id) for index in due if records[index].offset < doubtful
            }
        due = self._unknown(connection, due, marked)
        return self._unknown(connection, due, {index: ids[index] for index in due if index in ids})

    def _unknown(self, connection: Connection, due: list[int], ids: Mapping[int, str]) -> list[int]:
        """Return the indexes without an id, or with one that was not seen before. Raises LostRace."""
        if not ids:
            return due
        new = self._claims.claim_ids(connection, ids)
        self._ids_added += len(new)
        return [index for index in due if index in new or index not in ids]

    def committed(self, records: Sequence[ConsumerRecord], is_retry: bool) -> None:
        """Note that the transaction of these records was committed."""
        if not is_retry:
            self._has_reached(records[0].topic_partition, records[-1].next_offset)

    @property
    def _purge_is_due(self) -> bool:
        """True if enough ids were added to delete old ones."""
        return self._ids_added >= _IDS_PER_PURGE and time.monotonic() >= self._purge_at

    def _purge(self, connection: Connection) -> None:
        self._ids_added = 0
        self._claims.forget_ids(connection, self._keep_ms, most=2 * _IDS_PER_PURGE)

    def _session(self, connection: Any) -> Any:
        """Return the handler's argument. A session can roll back the connection's transaction, but not commit or close
        it.
        """
        if self._factory is None:
            return connection
        opened = self._factory(bind=connection, join_transaction_mode="rollback_only")
        bound = getattr(opened, "sync_session", opened).get_bind()
        if bound is not getattr(connection, "sync_connection", connection):
            raise NotHandled(
                f"{type(opened).__name__}.get_bind() goes elsewhere than to the connection of the transaction that "
                "holds the offset: give tx= a sessionmaker of a plain Session"
            )
        return opened


class BlockingUnits(Units):
    """Units of a plain engine. The whole transaction runs in the handler's worker thread."""

    def call(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        records: Sequence[ConsumerRecord],
        payloads: Mapping[str, Sequence[Any]],
        is_retry: bool,
    ) -> Any:
        """Call the handler in a transaction that also stores the offset after ``records``, and commit it."""
        call = Call(self, arguments, records, payloads, is_retry)
        token = carried.set(records[-1].headers)
        try:
            while True:
                try:
                    is_over, result = self._once(call, function)
                except Exception as error:  # of the handler or the database: the call decides which are retried
                    if self._stopped.wait(call.pause_after(error)):
                        raise NotHandled(_STOPPED, is_stopping=True) from error
                    continue
                if is_over:
                    break
        finally:
            carried.reset(token)
        self.committed(records, is_retry)
        if self._purge_is_due:
            try:
                self._database.run_here(self._purge)
            except Exception as error:  # the records are handled, and old ids can be deleted later
                logger.debug("handler %r: old ids are not deleted: %s", self.handler, error)
        return result

    def _once(self, call: Call, function: Callable[..., Any]) -> tuple[bool, Any]:
        """Run one transaction. Return False first if the handler rolled it back."""
        result, options = None, call.begins()
        connecting = self._database.plain.connect().execution_options(**options)
        with connecting as connection, connection.begin() as transaction:
            due = call.claim(connection)
            if due:
                opened = self._session(connection)
                try:
                    result = function(**call.given(due), **{self._parameter: opened})
                    if opened is not connection and opened.in_transaction():
                        opened.commit()  # flush pending changes to the connection
                finally:
                    if opened is not connection:
                        opened.close()
                if not call.is_over(transaction):
                    return False, result
                if call.is_suspect:
                    call.look(connection)
            transaction.commit()
        return True, result


class AsynchronousUnits(Units):
    """Units of an asynchronous engine, which run on the event loop."""

    _wake: anyio.Event | None = None
    """Set by `stop` to end a pause."""

    def stop(self) -> None:
        super().stop()
        if self._wake is not None:
            self._wake.set()

    async def _pause(self, seconds: float) -> bool:
        """Pause before a retry. Return True if the handler is stopping."""
        if self._wake is None:
            self._wake = anyio.Event()
        if not self._stopped.is_set():
            with anyio.move_on_after(seconds):
                await self._wake.wait()
        return self._stopped.is_set()

    async def call(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        records: Sequence[ConsumerRecord],
        payloads: Mapping[str, Sequence[Any]],
        is_retry: bool,
    ) -> Any:
        """Call the handler in a transaction that also stores the offset after ``records``, and commit it."""
        call = Call(self, arguments, records, payloads, is_retry)
        token = carried.set(records[-1].headers)
        try:
            while True:
                try:
                    is_over, result = await self._once(call, function)
                except Exception as error:  # of the handler or the database: the call decides which are retried
                    if await self._pause(call.pause_after(error)):
                        raise NotHandled(_STOPPED, is_stopping=True) from error
                    continue
                if is_over:
                    break
        finally:
            carried.reset(token)
        self.committed(records, is_retry)
        if self._purge_is_due:
            try:
                await self._database.run(self._purge)
            except Exception as error:  # the records are handled, and old ids can be deleted later
                logger.debug("handler %r: old ids are not deleted: %s", self.handler, error)
        return result

    async def _once(self, call: Call, function: Callable[..., Any]) -> tuple[bool, Any]:
        """Run one transaction. Return False first if the handler rolled it back."""
        result, options = None, call.begins()
        engine = cast("AsyncEngine", self._database.engine)
        async with engine.connect() as connection:
            await connection.execution_options(**options)
            async with connection.begin() as transaction:
                due = await connection.run_sync(call.claim)
                if due:
                    opened = self._session(connection)
                    try:
                        result = await function(**call.given(due), **{self._parameter: opened})
                        if opened is not connection and opened.in_transaction():
                            await opened.commit()  # flush pending changes to the connection
                    finally:
                        if opened is not connection:
                            with anyio.CancelScope(shield=True):
                                await opened.close()
                    if not call.is_over(transaction):
                        return False, result
                    if call.is_suspect:
                        await connection.run_sync(call.look)
                await transaction.commit()
        return True, result


_STOPPED = "the handler stops while it waits for its database"
