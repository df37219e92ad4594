"""The producer: serializes values, and chooses partitions."""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

import anyio
import anyio.lowlevel
import msgspec

from eventbus.backends.base import Add, Append, BackendProducer, Send
from eventbus.backends.delivery import BatchDelivery, Delivery, OnDelivery
from eventbus.client.config import ProducerSettings
from eventbus.client.partitioner import Partitioner, make_partitioner
from eventbus.client.producing.joining import (
    call_here,
    called_here,
    check_current,
    joined,
    outside_of_calls,
    refuse_transaction,
)
from eventbus.client.producing.metadata_waits import LookUps, Unplaced
from eventbus.client.producing.serialization import pack_headers, packer_of, unnamed
from eventbus.client.producing.shutdown_work import ShutdownWork
from eventbus.client.schemas import fetched
from eventbus.client.sending import HeadersLike, SendOptions, check_values
from eventbus.client.threads import Home
from eventbus.client.transaction import OwnProducer, Transaction
from eventbus.errors import (
    BufferExhausted,
    ConfigError,
    RequestTimedOut,
    SchemaNotReady,
    SerializationError,
    UnknownTopicOrPartition,
)
from eventbus.forks import watch_forks
from eventbus.types import GroupMetadata, Headers, OffsetAndMetadata, RecordMetadata, TopicPartition
from serdes import Serde
from serdes.base import Encode, SchemaNeeded

if TYPE_CHECKING:
    from eventbus.client.scheduling.schedules import Schedules

logger = logging.getLogger("eventbus.producer")


class HasGroup(Protocol):
    """A consumer with a group."""

    def group_metadata(self) -> GroupMetadata:
        """Return its current member and generation."""
        ...


GroupLike = HasGroup | GroupMetadata | str
"""The group of offsets: a consumer, its `GroupMetadata`, or the name of a group without members."""

AddReady = Callable[[bytes | None, bytes | None, Headers, int, int | None], BatchDelivery]
"""Takes (key, value, headers, timestamp_ms, partition) and returns the outcome of the batch; see `Producer.adder`."""

_KEYS_REMEMBERED = 65_536
_LAST_MS = (1 << 63) - 1
_SLICE = 1_000
"""Records of a `send_many` after which other tasks get a turn, about every millisecond."""


class _Topic:
    """Cached facts about a topic, so that a send needs no further look-ups."""

    __slots__ = (
        "adders", "appenders", "count", "encoders", "has_named", "key_encoders", "name", "partitioner", "partitions",
        "senders",
    )  # fmt: skip

    def __init__(self, name: str, count: int, partitioner: Partitioner, backend: BackendProducer) -> None:
        self.name = name
        self.count = count
        self.partitioner = partitioner
        self.partitions: dict[bytes | None, int] = {}
        """Cached partitions by key. Hashing in Python costs thirty times as much as the look-up."""
        self.appenders: list[Append] = [backend.appender(name, partition) for partition in range(count)]
        self.senders: list[Send] = [backend.sender(name, partition) for partition in range(count)]
        self.adders: list[Add] = [backend.adder(name, partition) for partition in range(count)]
        self.encoders: dict[type, Encode] = {type(None): lambda value: None}
        self.key_encoders: dict[type, Encode] = {}
        self.has_named = False
        """True if a type is encoded to `Named` bytes, whose schema name goes into a header."""

    def check_each(self, check: Callable[[], object]) -> None:
        """Call ``check`` before each record."""

        def checked(put: Callable[..., Any]) -> Callable[..., Any]:
            def checked_put(*record: Any) -> Any:
                check()
                return put(*record)

            return checked_put

        self.appenders = list(map(checked, self.appenders))
        self.senders = list(map(checked, self.senders))
        self.adders = list(map(checked, self.adders))

    def choose(self, key: bytes | None, value: Any, data: bytes | None) -> int:
        """Return the partition of a record, and cache it by key."""
        partition = self.partitioner.partition(key, value, data, self.count)
        if key is not None and self.partitioner.by_key:
            if len(self.partitions) >= _KEYS_REMEMBERED:
                self.partitions.clear()
            self.partitions[key] = partition
        return partition


class Producer:
    """Publishes records. An application needs only one, which all tasks of the event loop may share."""

    def __init__(
        self,
        backend: BackendProducer,
        settings: ProducerSettings,
        clock: Callable[[], int],
        serdes: Mapping[type, Serde],
        on_close: Callable[[Producer], None],
        shutdown_work: ShutdownWork,
    ) -> None:
        self.shutdown_work = shutdown_work
        """Its shield lets shutdown work finish although the surrounding task is cancelled."""
        self.schedules: Schedules | None = None
        """The schedules of its bus, which store delayed records."""
        self.family: object = None
        """Equal for all producers of one running bus."""
        self.joins = False
        """True if it sends for the bus itself, so that in an exactly-once handler its records join the transaction."""
        self.is_in_block = False
        """True while an ``async with`` block holds its transaction, which its records belong to on purpose."""
        self._twins: list[Producer] = []
        self._check: Callable[[], object] | None = None
        """Called before each record. Raises if it must no longer be sent here."""
        self._backend = backend
        self._settings = settings
        self._clock = clock
        self._serdes = serdes
        self._topics: dict[str, _Topic] = {}
        backend.on_topics_changed = self._topics.clear
        self._look_ups = LookUps(backend, self._send_parked)
        self._nowhere: _Topic | None = None
        """The topic last looked up, while only its name is known."""
        self._on_close = on_close
        self._closed = False
        self._scope = anyio.CancelScope()
        self._home = Home()
        self._thread = self._home.thread
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self._home.after_fork_in_child()
        self._thread = self._home.thread

    # sending ---------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        partition_key: Any = None,
        timestamp_ms: int | None = None,
        transactional: bool = True,
    ) -> Coroutine[Any, Any, RecordMetadata]:
        """Publish one record and wait for its ack, by awaiting the result.

        ``value`` and ``key`` may be bytes, str, int (64-bit big-endian), None, or anything that JSON can express.
        ``partition_key`` chooses the partition instead of ``key``; ``partition`` sets it. ``transactional=False`` sends
        outside of the transaction of an exactly-once handler on purpose. A producer of `EventBus.new_producer` cannot
        join that transaction, and raises ConfigError in such a handler without it. Raises SerializationError,
        UnknownTopicOrPartition, RecordTooLarge, BufferExhausted, StorageError.
        """
        if get_ident() != self._thread:
            raise self._home.elsewhere("send")
        if transactional and (call := call_here()) is not None:
            twin = call.producer_for(self, "send")
            if twin is not self:
                return twin.send(topic, value, key=key, headers=headers, partition=partition,
                                 partition_key=partition_key, timestamp_ms=timestamp_ms)  # fmt: skip
        timestamp_ms = self._clock() if timestamp_ms is None else self._time(timestamp_ms)
        entry = self._topics.get(topic) or self._topic(topic)
        try:
            if entry is None:
                record = self._unplaced(topic, value, key, headers, partition, partition_key, timestamp_ms)
                return self._send_when_known(topic, record)
            if type(value) is bytes:
                data = value
            else:
                try:
                    data = entry.encoders[type(value)](value)
                except Exception:  # the first value of its class, or one that cannot be serialized
                    data = self._bytes_of(entry, value, "value")
            if key is not None and type(key) is not bytes:
                key = self._bytes_of(entry, key, "key")
        except SchemaNotReady as error:
            send = partial(self.send, topic, value, key=key, headers=headers, partition=partition,
                           partition_key=partition_key, timestamp_ms=timestamp_ms,
                           transactional=transactional)  # fmt: skip
            return self._send_when_ready(error, send)
        packed = pack_headers(headers) if headers else ()
        if entry.has_named:
            key, data, packed = unnamed(key, data, packed)
        if partition is None:
            chosen_by = key if partition_key is None else self._bytes_of(entry, partition_key, "partition_key")
            partition = entry.partitions.get(chosen_by)
            if partition is None:
                partition = entry.choose(chosen_by, value, data)
        elif not 0 <= partition < entry.count:
            raise self._no_such_partition(entry, partition)
        # Return the coroutine without wrapping it: an awaited publish takes 5 us, a quarter of that for each coroutine.
        return entry.senders[partition](key, data, packed, timestamp_ms)

    def send_nowait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        partition_key: Any = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
        transactional: bool = True,
    ) -> Delivery:
        """Add one record to its batch and return a handle: await it, or pass ``on_delivery(metadata, error)``.

        Raises what `send` raises before the record is accepted, and BufferExhausted instead of waiting for space. For a
        topic that this producer has not used yet, a cluster's errors arrive with the handle.
        """
        if get_ident() != self._thread:
            raise self._home.elsewhere("send_nowait")
        if transactional and (call := call_here()) is not None:
            twin = call.producer_for(self, "send_nowait")
            if twin is not self:
                on_delivery = None if on_delivery is None else called_here(on_delivery)
                return twin.send_nowait(topic, value, key=key, headers=headers, partition=partition,
                                        partition_key=partition_key, timestamp_ms=timestamp_ms,
                                        on_delivery=on_delivery)  # fmt: skip
        timestamp_ms = self._clock() if timestamp_ms is None else self._time(timestamp_ms)
        entry = self._topics.get(topic) or self._topic(topic)
        if entry is None:
            record = self._unplaced(topic, value, key, headers, partition, partition_key, timestamp_ms)
            delivery = self._look_ups.park(topic, record)
            if on_delivery is not None:
                delivery.add_callback(on_delivery)
            return delivery
        # Bytes are the common case and this is the hottest path of all. For bytes nothing is called, for other values
        # only the encoder of their class.
        if type(value) is bytes:
            data = value
        else:
            try:
                data = entry.encoders[type(value)](value)
            except Exception:  # the first value of its class, or one that cannot be serialized
                data = self._bytes_of(entry, value, "value")
        if key is not None and type(key) is not bytes:
            key = self._bytes_of(entry, key, "key")
        packed = pack_headers(headers) if headers else ()
        if entry.has_named:
            key, data, packed = unnamed(key, data, packed)
        if partition is None:
            chosen_by = key if partition_key is None else self._bytes_of(entry, partition_key, "partition_key")
            partition = entry.partitions.get(chosen_by)
            if partition is None:
                partition = entry.choose(chosen_by, value, data)
        elif not 0 <= partition < entry.count:
            raise self._no_such_partition(entry, partition)
        delivery = entry.appenders[partition](key, data, packed, timestamp_ms)
        if on_delivery is not None:
            delivery.add_callback(on_delivery)
        return delivery

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        transactional: bool = True,
    ) -> None:
        """Publish many records and wait until all are stored: the fastest way to publish.

        ``key`` computes each record's key from its value; ``headers``, ``partition`` and ``timestamp_ms`` apply to all.
        Raises the first error. A batch is stored or fails as a whole, so records in other batches may be stored then.
        It waits for buffer space, so ``values`` may be of any length, also a generator. Exceptions of ``key`` or a
        serde get a note with the number of values sent before.
        """
        check_values(topic, values, key, partition=partition)
        self._home.check("send_many")
        if transactional and (twin := joined(self, "send_many")) is not self:
            return await twin.send_many(
                topic, values, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
            )
        await self._send_many(topic, values, key, headers, partition, timestamp_ms)

    async def _send_many(
        self,
        topic: str,
        values: Iterable[Any],
        key: Callable[[Any], Any] | None,
        headers: HeadersLike | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        entry = await self._topic_when_known(topic)
        given = packed = pack_headers(headers) if headers else ()
        self._check_partition(entry, partition)
        now_ms = self._time(timestamp_ms)
        batches: list[BatchDelivery] = []
        latest: dict[int, BatchDelivery] = {}
        key_bytes = None
        for number, value in enumerate(values, 1):
            try:
                if type(value) is bytes:
                    data = value
                else:
                    try:
                        data = entry.encoders[type(value)](value)
                    except Exception:  # the first value of its class, or one that cannot be serialized
                        data = self._bytes_of(entry, value, "value")
                if key is not None:
                    key_bytes = key(value)
                    if type(key_bytes) is not bytes:
                        key_bytes = self._bytes_of(entry, key_bytes, "key")
            except SchemaNotReady as error:
                data, key_bytes = await self._bytes_when_ready(error, entry, value, key)
            except Exception as error:
                if number > 1:
                    error.add_note(f"send_many({topic!r}, ...): the {number - 1:,} value(s) before this one are sent")
                raise
            if entry.has_named:
                key_bytes, data, packed = unnamed(key_bytes, data, given)
            chosen = entry.partitions.get(key_bytes) if partition is None else partition
            if chosen is None:
                chosen = entry.choose(key_bytes, value, data)
            try:
                batch = entry.adders[chosen](key_bytes, data, packed, now_ms)
            except BufferExhausted:
                await self._backend.wait_for_room()
                batch = entry.adders[chosen](key_bytes, data, packed, now_ms)
            if latest.get(chosen) is not batch:
                latest[chosen] = batch
                batches.append(batch)
            if not number % _SLICE:
                # Let other tasks run, including the sender; stop at a failure; read the clock again.
                await anyio.lowlevel.checkpoint()
                batches = await _unstored(batches, wait=False)
                entry = await self._topic_when_known(topic)
                self._check_partition(entry, partition)  # the topic may have been deleted and created again
                now_ms = self._time(timestamp_ms)
        await self._backend.flush()
        await _unstored(batches, wait=True)

    async def adder(self, topic: str) -> AddReady:
        """Return a function that adds serialized records of ``topic`` to batches.

        ``add(key, value, headers, timestamp_ms, partition)`` takes bytes as stored in the log; the partitioner chooses
        if partition is None. It returns the outcome of the batch, and raises RecordTooLarge, UnknownTopicOrPartition,
        and BufferExhausted (call `wait_for_room` and retry). Get a new function for each transaction, because topics
        change. Raises UnknownTopicOrPartition.
        """
        self._home.check("adder")
        entry = await self._topic_when_known(topic)
        known, adders, count = entry.partitions, entry.adders, entry.count

        def add(
            key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, partition: int | None
        ) -> BatchDelivery:
            if partition is None:
                partition = known.get(key)
                if partition is None:
                    partition = entry.choose(key, value, value)
            elif not 0 <= partition < count:
                raise self._no_such_partition(entry, partition)
            return adders[partition](key, value, headers, timestamp_ms)

        return add

    async def ready(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> Unplaced:
        """Return the record as `send` would write it, to be written later. Without a partition, its key decides then.

        Raises what `send` raises before a record is accepted.
        """
        self._home.check("send")
        entry = await self._topic_when_known(topic)
        timestamp_ms = self._time(options.get("timestamp_ms"))
        rest = options.get("key"), options.get("headers"), options.get("partition"), options.get("partition_key")
        while True:
            try:
                record = self._unplaced(topic, value, *rest, timestamp_ms)
                break
            except SchemaNotReady as error:
                await fetched(error)
        if record.partition is None and rest[-1] is None and self._settings.partitioner == "murmur2":
            return record
        return msgspec.structs.replace(record, partition=self._place(entry, record))

    # records whose topic is looked up ---------------------------------------------------------------------------------

    def _unplaced(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: HeadersLike | None,
        partition: int | None,
        partition_key: Any,
        timestamp_ms: int,
    ) -> Unplaced:
        """Serialize the record now, because its sender may change the value while the record waits."""
        entry = self._nowhere
        if entry is None or entry.name != topic:
            entry = self._nowhere = _Topic(topic, 0, make_partitioner("murmur2", topic, 1), self._backend)
        key_bytes, data = self._bytes_of(entry, key, "key"), self._bytes_of(entry, value, "value")
        key_bytes, data, packed = unnamed(key_bytes, data, pack_headers(headers) if headers else ())
        chosen_by = key_bytes if partition_key is None else self._bytes_of(entry, partition_key, "partition_key")
        return Unplaced(value, data, key_bytes, packed, partition, chosen_by, timestamp_ms)

    def _place(self, entry: _Topic, record: Unplaced) -> int:
        """Return the partition of a record whose topic is now known."""
        if record.partition is None:
            known = entry.partitions.get(record.chosen_by)
            return entry.choose(record.chosen_by, record.value, record.data) if known is None else known
        if not 0 <= record.partition < entry.count:
            raise self._no_such_partition(entry, record.partition)
        return record.partition

    async def _send_when_known(self, topic: str, record: Unplaced) -> RecordMetadata:
        await self._look_ups.known(topic)
        entry = await self._topic_when_known(topic)
        return await entry.senders[self._place(entry, record)](
            record.key, record.data, record.headers, record.timestamp_ms
        )

    def _send_parked(self, topic: str, record: Unplaced) -> Delivery:
        entry = self._topics.get(topic) or self._topic(topic)
        if entry is None:
            return self._look_ups.park(topic, record)
        append = entry.appenders[self._place(entry, record)]
        return append(record.key, record.data, record.headers, record.timestamp_ms)

    async def _topic_when_known(self, topic: str) -> _Topic:
        while (entry := self._topics.get(topic) or self._topic(topic)) is None:
            await self._look_ups.known(topic)
        return entry

    async def wait_for_room(self, *, transactional: bool = True) -> None:
        """Return when the buffer has space for more `send_nowait`. Raises BufferExhausted after ``max_block_ms``.

        ``transactional`` is that of the sends, because a handler's transaction has a separate buffer.
        """
        self._home.check("wait_for_room")
        one = joined(self, "wait_for_room") if transactional else self
        await one._all_known()
        await one._backend.wait_for_room()

    async def flush(self) -> None:
        """Return when every record sent so far is stored or has failed."""
        self._home.check("flush")
        await self._all_known()
        await self._backend.flush()

    # transactions ----------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Take over the transactional id: fence earlier producers, and abort their open transaction.

        `begin` calls it if necessary. After an interrupted commit or abort it completes that. Raises
        InvalidTransactionTimeout, ProducerFenced, StorageError.
        """
        self._home.check("a transaction")
        await self._backend.init_transactions()

    async def begin(self) -> None:
        """Begin a transaction: records sent from now on become visible with `commit`, or never.

        Raises InvalidTxnState if one is open or the producer has no transactional id, ProducerFenced, and ConfigError
        in an exactly-once handler; see `EventBus.transaction`.
        """
        self._home.check("a transaction")
        refuse_transaction(self._settings.config.transactional_id)
        await self._backend.init_transactions()
        self._backend.begin_transaction()

    async def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupLike) -> None:
        """Commit a group's *next* offsets with the transaction (KIP-98, KIP-447).

        ``group`` is the consumer that read the records, or its `GroupMetadata`, so that a member that was removed is
        refused. It may also be the name of a group without members. Raises IllegalGeneration, UnknownMemberId,
        RebalanceInProgress, FencedInstanceId: abort then.
        """
        self._home.check("send_offsets")
        if isinstance(group, str):
            group = GroupMetadata(group)
        elif not isinstance(group, GroupMetadata):
            group = group.group_metadata()
        await self._backend.send_offsets_to_transaction(
            {
                TopicPartition(*partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
                for partition, offset in offsets.items()
            },
            group,
        )

    async def commit(self) -> None:
        """Commit. When it returns, all records and offsets are durable, and visible to read_committed consumers.

        Raises TransactionAborted (nothing is visible: a record could not be stored, or the transaction timed out),
        ProducerFenced, TransactionOutcomeUnknown, and StorageError if nothing has happened yet: then commit again, or
        abort. A cancelled commit may have happened; calling commit again returns its outcome.
        """
        self._home.check("commit")
        await self._all_known()
        await self._backend.commit_transaction()

    async def abort(self) -> None:
        """Abort. When it returns, nothing of the transaction is or ever becomes visible to read_committed consumers."""
        self._home.check("abort")
        await self._all_known()
        await self._backend.abort_transaction()

    def joined_to(self, other: Producer) -> Producer:
        """Return a twin of this producer that sends in the transactions of ``other``.

        It keeps serdes, partitioner and interceptors. Buffer and batches are those of ``other``, which closes it.
        """
        twin = copy.copy(self)
        twin._backend = backend = other._backend
        twin._topics, twin._nowhere, twin._twins = {}, None, []
        # Parked records are not checked again, because commit and abort wait until none is parked.
        twin._look_ups = LookUps(backend, outside_of_calls(twin._send_parked))
        # A send may wait, for example for a schema. By the time the record is ready, the call that made it may be over
        # and another transaction open, so each record is checked when it enters.
        twin._check = check_current
        forget = backend.on_topics_changed

        def topics_changed() -> None:
            forget()
            twin._topics.clear()

        backend.on_topics_changed = topics_changed
        watch_forks(twin)
        other._twins.append(twin)
        return twin

    async def _all_known(self) -> None:
        """Return when no record waits for its topic's metadata."""
        for one in (self, *self._twins):
            await one._look_ups.all_known()

    def transaction(self) -> Transaction:
        """``async with producer.transaction() as tx``: begin, then commit, or abort if the block raises."""
        return Transaction(self._settings.config.transactional_id or "", OwnProducer(self))

    def _time(self, timestamp_ms: int | None) -> int:
        """Return the record's timestamp, by default the current time."""
        if timestamp_ms is None:
            return self._clock()
        if type(timestamp_ms) is not int or not 0 <= timestamp_ms <= _LAST_MS:
            raise _no_time(timestamp_ms)
        return timestamp_ms

    # bytes -----------------------------------------------------------------------------------------------------------

    def _bytes_of(self, entry: _Topic, value: Any, what: str) -> bytes | None:
        if value is None:
            return None
        kind = cast("type[Any]", type(value))
        encoders = entry.encoders if what == "value" else entry.key_encoders
        encode = encoders.get(kind)
        try:
            if encode is None:
                encode, is_named = packer_of(kind, entry.name, self._serdes, is_key=what != "value")
                encoders[kind] = encode
                entry.has_named = entry.has_named or is_named
            return encode(value)
        except SchemaNeeded as needed:
            raise SchemaNotReady(
                f"the {what} of a record for topic {entry.name!r} cannot be written yet: {needed}. Declare it (the "
                "return type of a @producer), `await bus.prepare(topic, Type)`, or send it with `await bus.send(...)`",
                needed.fetch,
            ) from None
        except Exception as error:
            raise SerializationError(
                f"the {what} of a record for topic {entry.name!r} cannot be written: {error} "
                f"({what} is {type(value).__name__}: {value!r:.120})"
            ) from error

    async def _send_when_ready(
        self, error: SchemaNotReady, send: Callable[[], Awaitable[RecordMetadata]]
    ) -> RecordMetadata:
        """Send after a schema was registered in a worker thread, so that the loop does not wait for a registry."""
        await fetched(error)
        return await send()

    async def _bytes_when_ready(
        self, error: SchemaNotReady, entry: _Topic, value: Any, key: Callable[[Any], Any] | None
    ) -> tuple[bytes | None, bytes | None]:
        while True:
            await fetched(error)
            try:
                return self._bytes_of(entry, value, "value"), key and self._bytes_of(entry, key(value), "key")
            except SchemaNotReady as another:
                error = another

    def _topic(self, topic: str) -> _Topic | None:
        """Return the topic, or None if its metadata must be looked up first."""
        count = None if self._look_ups.is_open(topic) else self._backend.partition_count(topic)
        if count is None:
            return None
        partitioner = make_partitioner(self._settings.partitioner, topic, self._settings.config.batch_size)
        entry = self._topics[topic] = _Topic(topic, count, partitioner, self._backend)
        if self._check is not None:
            entry.check_each(self._check)
        return entry

    def _check_partition(self, entry: _Topic, partition: int | None) -> None:
        if partition is not None and not 0 <= partition < entry.count:
            raise self._no_such_partition(entry, partition)

    @staticmethod
    def _no_such_partition(entry: _Topic, partition: int) -> UnknownTopicOrPartition:
        return UnknownTopicOrPartition(
            f"topic {entry.name!r} has partitions 0 to {entry.count - 1}; there is no partition {partition}"
        )

    # start and stop
    # -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the sender's loop. Called by the bus."""
        with self._scope:
            await self._backend.run()

    @property
    def name(self) -> str:
        """The producer's name in log messages."""
        transactional_id = self._settings.config.transactional_id
        return "a producer" if transactional_id is None else f"the producer of {transactional_id!r}"

    async def aclose(self) -> None:
        """Flush, then refuse further records. An open transaction is aborted.

        It takes at most the bus's ``drain_timeout_ms``. Records that the log has not acknowledged by then are given up,
        and logged.
        """
        if not self._closed:
            self._home.check("closing a producer")
            self._closed = True
            try:
                with self.shutdown_work.shield() as scope:
                    await self._all_known()
                    await self._backend.aclose()
                if scope.cancelled_caught:
                    self.give_up()
            finally:
                self._scope.cancel()
                self._on_close(self)

    def give_up(self) -> None:
        """Fail and log all records without an outcome, because the log has not answered in time."""
        error = RequestTimedOut("the producer was closed before the log answered: the record may be stored, or not")
        parked = sum(one._look_ups.give_up(error) for one in (self, *self._twins))
        count = parked + self._backend.give_up(error)
        transactional_id = self._settings.config.transactional_id
        if transactional_id is not None:
            logger.warning(
                "the producer of %r closes, and the log has not answered in time: its transaction is not ended, "
                "%d record(s) of it were not stored; the next producer of the id aborts it", transactional_id, count,
            )  # fmt: skip
        elif count:
            logger.warning(
                "the producer closes, and %d record(s) were not acknowledged in time: they may be stored, or not; send "
                "them again if repeating them does no harm, and raise drain_timeout_ms if the log is only slow", count,
            )  # fmt: skip

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


async def _unstored(batches: list[BatchDelivery], *, wait: bool) -> list[BatchDelivery]:
    """Return the batches without an outcome yet. Raises the error of one that failed."""
    for batch in batches:
        if wait:
            await batch.wait()
        if batch.error is not None:
            raise batch.error
    return [batch for batch in batches if not batch.done]


def _no_time(timestamp_ms: Any) -> ConfigError:
    """Return the error for an invalid timestamp, raised before the record can fail the batch that it would share."""
    return ConfigError(
        f"timestamp_ms={timestamp_ms!r}: whole milliseconds since the epoch, as int(time.time() * 1000); leave it out "
        "for now"
    )
