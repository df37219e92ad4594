"""A table: the latest state of each key of a topic, in memory, filled before the handlers start."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_origin

import msgspec

from eventbus.backends.base import EARLIEST
from eventbus.backends.process_exit import check_exit
from eventbus.broker import TopicDescription
from eventbus.client.consuming.restoring import NOTHING
from eventbus.client.handling.call_loop import CallLoop, Slices, fresh_context
from eventbus.client.handling.functions import name_of, takes
from eventbus.client.health import BusStatus, PartHealth
from eventbus.client.host import Host
from eventbus.client.metrics import Sample
from eventbus.client.producing.joining import refuse_waiting
from eventbus.client.schema_uses import SchemaUse
from eventbus.client.schemas import all_fetched
from eventbus.client.tables.contents import Contents, Folded, Format, TableChange, View
from eventbus.client.tables.following import Following
from eventbus.client.threads import Home
from eventbus.errors import ConfigError, SerializationError, TableError, UnknownTopicOrPartition
from eventbus.forks import watch_forks
from eventbus.types import FetchedRecords, RecordMetadata, TopicPartition
from serdes import Serde, serde_for
from serdes.base import SchemaSerde, bind_encoder, for_keys
from serdes.choose import serde_of_topic, serde_of_values

if TYPE_CHECKING:
    from eventbus.client.transaction import Transaction

logger = logging.getLogger("eventbus.tables")

K = TypeVar("K")
V = TypeVar("V")
Fold = Callable[[Any, Any], Any]
OnChange = TypeVar("OnChange", bound=Callable[..., Any])
History = Literal["whole", "partial"]
_VIEW_CONFIGS = {"cleanup.policy": "compact"}
_FOLD_CONFIGS = {"retention.ms": "-1", "retention.bytes": "-1"}


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of ``bus.table``."""

    name: str
    topic: str
    key: Any
    value: Any
    fold: Fold | None = None
    initial: Callable[[], Any] | None = None
    history: History = "whole"
    skips: bool = False


def table_spec(
    name: str,
    key: Any,
    value: Any,
    of: str | None,
    fold: Fold | None,
    initial: Callable[[], Any] | None,
    history: str,
    on_error: str,
) -> TableSpec:
    """Validate the options of ``bus.table``. Raises ConfigError."""
    where = f"bus.table({name!r})"
    if not isinstance(cast(Any, name), str) or not name or (of is not None and not isinstance(cast(Any, of), str)):
        raise ConfigError('bus.table takes the topic first: bus.table("accounts", key=str, value=Account)')
    if fold is None and (initial is not None or history != "whole"):
        raise ConfigError(f"{where}: initial= and history= go with fold=: without it an entry is its key's last value")
    if fold is not None and (not callable(fold) or not takes(fold, 2) or inspect.iscoroutinefunction(fold)):
        raise ConfigError(f"{where}: fold={name_of(fold)}: a plain function of two, fold=lambda state, event: ...")
    if initial is not None and (not callable(initial) or not takes(initial, 0)):
        raise ConfigError(f"{where}: initial={initial!r}: a function or type that makes the first state, initial=int")
    if history not in ("whole", "partial"):
        raise ConfigError(f"{where}: history={history!r}: 'whole' or 'partial'")
    if on_error not in ("stop", "skip"):
        raise ConfigError(f"{where}: on_error={on_error!r}: 'stop' or 'skip'")
    if not _is_hashable(key):
        raise ConfigError(f"{where}: key={name_of(key)}: such keys cannot be looked up; take str, or a frozen Struct")
    return TableSpec(
        name=name, topic=of or name, key=key, value=value, fold=fold, initial=initial, history=history,
        skips=on_error == "skip",
    )  # fmt: skip


def _is_hashable(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type):
        return True  # checked with the first key
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    return cast(Any, kind).__hash__ is not None


class Table(Mapping[K, V], Generic[K, V]):
    """The last value of each key of a topic, or a state folded from its events; see `EventBus.table`.

    Look-ups are synchronous: ``accounts[key]``, ``get``, ``in``, ``len``, iteration (over a copy of the moment). The
    returned objects belong to the table and must not be changed. Every process holds all partitions. A look-up raises
    ConfigError before the bus has started and after it has closed, and TableError for an entry whose record could not
    be read.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._hooks: list[Callable[[TableChange[K, V]], Any]] = []
        self._call_loop = CallLoop()
        self._bus: Host | None = None
        self._restoring = NOTHING
        """The restoring steps of the bus while it runs."""
        self._contents: Contents[K, V] | None = None
        self._following: Following | None = None
        self._is_caught_up = False
        self._home: Home | None = None
        self._drained = 0
        """Number of records read when it was last drained."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def topic(self) -> str:
        """The topic that the table reads."""
        return self.spec.topic

    def __repr__(self) -> str:
        entries = "not running" if self._contents is None else f"{len(self._contents.entries):,} entries"
        return f"<table {self.spec.name} of {self.spec.topic}, {entries}>"

    # looking up ------------------------------------------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        self._is_caught_up = False  # the copy in the child would never change

    def _held(self) -> Contents[K, V]:
        if self._contents is None or not self._is_caught_up:
            if self._home is not None:
                self._home.check_fork(f"table {self.spec.name!r}")
            raise ConfigError(
                f"table {self.spec.name!r} is not filled: it is caught up when the bus starts, before its handlers, "
                "and there while it runs"
            )
        return self._contents

    def __getitem__(self, key: K) -> V:
        held = self._held()
        try:
            return held.entries[key]
        except KeyError:
            if key in held.broken:
                raise TableError(held.broken[key]) from None
            raise

    def __len__(self) -> int:
        return len(self._held().entries)

    def snapshot(self) -> dict[K, V]:
        """Return a copy of the current entries."""
        return dict(self._held().entries)

    # Return copies, because records are applied in between: at an ``await`` in the loop, and during a handler in a
    # worker thread.

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._held().entries))

    def keys(self) -> KeysView[K]:
        return self.snapshot().keys()

    def values(self) -> ValuesView[V]:
        return self.snapshot().values()

    def items(self) -> ItemsView[K, V]:
        return self.snapshot().items()

    # writing ---------------------------------------------------------------------------------------------------------

    async def put(
        self, key: K, value: V, *, tx: Transaction | None = None, transactional: bool = True
    ) -> RecordMetadata:
        """Send ``value`` to the topic and return when it is stored. See `until` for waiting until the table has it.

        ``tx`` sends it as part of a transaction; see `EventBus.send` for ``transactional``. Raises ConfigError for a
        folded table, SerializationError for a key or value that the table could not read back, and what `EventBus.send`
        raises.
        """
        if cast(Any, value) is None:
            raise ConfigError(f"table {self.spec.name!r}: put() of None: delete(key) removes an entry")
        return await self._send(key, value, tx, transactional)

    async def delete(self, key: K, *, tx: Transaction | None = None, transactional: bool = True) -> RecordMetadata:
        """Remove the entry by sending a null, otherwise like `put`. A missing entry may be deleted."""
        return await self._send(key, None, tx, transactional)

    async def _send(self, key: K, value: V | None, tx: Transaction | None, transactional: bool) -> RecordMetadata:
        held, bus = self._held(), self._bus
        assert bus is not None, "it holds entries while the bus runs"
        if self.spec.fold is not None:
            raise ConfigError(
                f"table {self.spec.name!r} is folded from the events in {self.spec.topic!r}: send an event there"
            )
        self._check_readable(held.format, key, "key", bus)
        if value is not None:
            self._check_readable(held.format, value, "value", bus)
        if tx is not None:
            return await tx.send(self.spec.topic, value, key=key, transactional=transactional)
        return await bus.send(self.spec.topic, value, key=key, transactional=transactional)

    def _check_readable(self, format: Format, given: Any, what: str, bus: Host) -> None:
        """Raise SerializationError for a key or value that no reader of the table could read."""
        reads = format.key_serde if what == "key" else format.value_serde
        kind = cast("type[Any]", type(given))
        if what == "key":
            writes = for_keys(serde_of_values(kind, bus.context.serdes))
        else:
            writes = serde_of_topic(kind, self.spec.topic, bus.context.serdes)
        annotation = self.spec.key if what == "key" else self.spec.value
        problem = ""
        if isinstance(reads, SchemaSerde) or isinstance(writes, SchemaSerde):
            if isinstance(reads, SchemaSerde) != isinstance(writes, SchemaSerde):
                problem = "it is read and written with different serdes: say serdes={type: serde} on the bus"
        elif given is None:
            problem = "it is None"
        else:
            try:
                data = bind_encoder(writes, self.spec.topic, kind)(given)
                read = (format.key if what == "key" else format.value)(cast(bytes, data))
                if what == "key" and read != given:  # for example, the eight bytes of an int may also be read as a text
                    problem = f"it would be read as {read!r}"
            except Exception as error:  # a serde may raise anything
                problem = str(error)
        if problem:
            raise SerializationError(
                f"table {self.spec.name!r}: the {what} {given!r:.120} is not one that is read as "
                f"{getattr(annotation, '__name__', annotation)}: {problem}"
            )

    async def until(self, metadata: RecordMetadata) -> None:
        """Return when the table contains a written record: ``await table.until(await table.put(key, value))``.

        A record written in a transaction arrives when that is committed (or is skipped if it is aborted), so do not
        wait for it inside the transaction or in a function of `on_change`. Raises ConfigError in these cases, for a
        record of another topic, and if the bus closes; TableError if the topic is deleted meanwhile, or was deleted
        since the send.
        """
        if metadata.topic != self.spec.topic or metadata.offset < 0:
            raise ConfigError(
                f"table {self.spec.name!r} of topic {self.spec.topic!r} cannot wait for {metadata}: it waits for a "
                "record of its topic whose offset is known (not with acks=0)"
            )
        self._held()
        assert self._following is not None, "it holds entries while it follows the topic"
        wanted = {TopicPartition(metadata.topic, metadata.partition): metadata.offset + 1}
        await self._following.check_there(wanted)
        if not self._following.has(wanted):
            refuse_waiting(f"table {self.spec.name!r}: until()", for_own=True)
        await self._following.until(wanted)

    def on_change(self, hook: OnChange) -> OnChange:
        """Decorate a function of a `TableChange`, async or not, which is called after each write while the bus runs.

        It is not called for records read at the start. If several writes to a key arrive at once, it is called for the
        last. The table waits for it, and logs its exceptions.
        """
        if not callable(hook) or not takes(hook, 1):
            raise ConfigError(f"@{self.spec.name}.on_change {name_of(hook)}: it is called with the TableChange alone")
        self._hooks.append(hook)
        return hook

    # start and stop
    # -----------------------------------------------------------------------------------------------------

    def uses(self, serdes: Mapping[type, Serde]) -> list[SchemaUse]:
        """Return the types it reads, whose schemas must be prepared before. Raises ConfigError if no serde reads a
        type.
        """
        spec = self.spec
        try:
            read = {"key": for_keys(serde_for(spec.key, serdes)), "value": serde_for(spec.value, serdes)}
        except TypeError as error:
            raise ConfigError(f"table {spec.name!r}: {error}") from None
        annotations = {"key": spec.key, "value": spec.value}
        return [
            SchemaUse(spec.topic, part, "reads", annotations[part], serde, f"table {spec.name}")
            for part, serde in read.items()
        ]

    @property
    def topic_configs(self) -> dict[str, str]:
        """The configs with which the topic is created."""
        return dict(_VIEW_CONFIGS if self.spec.fold is None else _FOLD_CONFIGS)

    async def start(self, bus: Host) -> None:
        """Read the topic to its end.

        Raises ConfigError for an unsuitable topic, TableError for records that cannot be read and deleted events, and
        the log's errors.
        """
        spec = self.spec
        await self._check_topic(bus)
        format = Format(spec.topic, spec.key, spec.value, bus.context.serdes)
        if spec.fold is None:
            self._contents = View(spec.name, format, skips=spec.skips)
        else:
            self._contents = Folded(spec.name, format, spec.fold, spec.initial, skips=spec.skips)
        reader = bus.context.reader(start="earliest", isolation_level="read_committed")
        self._following = Following(
            spec.name, spec.topic, bus.context.backend, reader, self._apply, self._contents.clear
        )
        self._bus, self._restoring = bus, bus.context.restoring
        await self._following.catch_up()
        self._contents.check()
        self._drained = self._following.read
        self._is_caught_up = True
        self._home = Home()
        watch_forks(self)
        bus.context.start_soon(self._following.run)

    async def aclose(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            await following.aclose()
        self._is_caught_up = False
        self._contents = self._bus = None

    async def drain(self) -> bool:
        """Wait until the table has everything that is now in the topic. Return True if records arrived since the last
        call.

        In that case functions of `on_change` may have published something.
        """
        following = self._following
        if following is None:
            return False
        await following.until(await following.ends())
        before, self._drained = self._drained, following.read
        return following.read != before

    async def _apply(self, chunk: FetchedRecords) -> None:
        held = self._contents
        assert held is not None and self._bus is not None
        chunk, unreadable = await self._restoring.columns(chunk)
        await all_fetched(lambda: held.format.needed(chunk))
        reports = self._is_caught_up and bool(self._hooks)
        # In a copied context, so that variables set by the fold function reach neither the next fetch nor on_change.
        changes = copy_context().run(held.apply, chunk, unreadable, reports)
        if changes:
            await self._call_loop.run(Slices(self._bus.context.backend.timers.current_time), self._tell(changes))

    async def _tell(self, changes: list[TableChange[K, V]]) -> None:
        for change in changes:
            await self._tell_of(change)

    async def _tell_of(self, change: TableChange[K, V]) -> None:
        loop = self._call_loop
        for hook in self._hooks:
            if not loop.look():
                await loop.turn()
            await fresh_context()
            try:
                result = hook(change)
                if isinstance(result, Awaitable):
                    await cast("Awaitable[Any]", result)
            except Exception:  # the user's code: its error must not stop the table
                logger.exception("table %r: %s raised on a change of %r", self.name, name_of(hook), change.key)
            except BaseException as error:
                check_exit(error, f"table {self.name!r}: {name_of(hook)}, called with a change of {change.key!r:.80},")
                raise

    # the topic -------------------------------------------------------------------------------------------------------

    async def _check_topic(self, bus: Host) -> None:
        try:
            [found] = await bus.context.backend.describe_topics([self.spec.topic])
        except UnknownTopicOrPartition as error:
            raise UnknownTopicOrPartition(f"table {self.spec.name!r}: {error}") from None
        policy = found.configs["cleanup.policy"].value or "delete"
        if self.spec.fold is None:
            self._check_compacted(policy)
        else:
            await self._check_whole(bus, found, policy)

    def _check_compacted(self, policy: str) -> None:
        topic = self.spec.topic
        if "compact" not in policy:
            raise ConfigError(
                f"table {self.spec.name!r}: topic {topic!r} has cleanup.policy={policy}: entries would vanish with old "
                f"records. Make it compact: eventbus topics alter {topic} --config cleanup.policy=compact; or fold its "
                "events: bus.table(..., fold=...)"
            )

    async def _check_whole(self, bus: Host, topic: TopicDescription, policy: str) -> None:
        """Check that all events are available, because the states would be wrong otherwise."""
        name, of = self.spec.name, self.spec.topic
        if "compact" in policy:
            raise ConfigError(
                f"table {name!r}: topic {of!r} has cleanup.policy={policy}: of the events of a key only the last "
                "one is kept, so nothing can be folded from them; leave fold= out, or keep all of them "
                "(cleanup.policy=delete, retention.ms=-1)"
            )
        if self.spec.history == "partial":
            return
        partitions = [TopicPartition(of, one.partition) for one in topic.partitions]
        firsts = await bus.context.backend.list_offsets(dict.fromkeys(partitions, EARLIEST))
        gone = {one: at.offset for one, at in firsts.items() if at.offset > 0}
        if gone:
            listed = ", ".join(f"{one} begins at offset {first:,}" for one, first in sorted(gone.items()))
            raise TableError(
                f"table {name!r}: events of topic {of!r} are gone: {listed}. A state folded from the rest is another "
                "one: bring them back, or say history='partial' if the rest is enough"
            )
        limited = [
            f"{key}={entry.value}"
            for key in _FOLD_CONFIGS
            if (entry := topic.configs.get(key)) is not None and entry.value not in (None, "-1")
        ]
        if limited:
            logger.warning(
                "table %r: topic %r deletes old events (%s): from then on the table cannot be made, and the start is "
                "refused: eventbus topics alter %s --config retention.ms=-1 --config retention.bytes=-1",
                name, of, ", ".join(limited), of,
            )  # fmt: skip

    # observation ---------------------------------------------------------------------------------------------------

    def samples(self) -> Iterable[Sample]:
        """Yield the table's size and lag."""
        held, following = self._contents, self._following
        if held is None or following is None:
            return
        labels = {"table": self.spec.name, "topic": self.spec.topic}
        yield Sample("eventbus_table_entries", labels, len(held.entries), "gauge")
        yield Sample("eventbus_table_size_bytes", labels, held.size_bytes, "gauge")
        yield Sample("eventbus_table_lag_records", labels, following.lag, "gauge")
        yield Sample("eventbus_table_broken_entries", labels, len(held.broken), "gauge")
        yield Sample("eventbus_table_applied_records_total", labels, held.applied, "counter")
        yield Sample("eventbus_table_skipped_records_total", labels, held.skipped, "counter")

    def health(self) -> PartHealth:
        """Return the health: degraded if an entry is unknown or the topic cannot be read."""
        part = f"table {self.spec.name}"
        held, following = self._contents, self._following
        if held is None or following is None:
            return PartHealth(part=part, status="failed", reason="it is not running")
        status: BusStatus = "ok"
        reason = f"{len(held.entries):,} entries, {following.lag:,} records behind"
        if following.is_missing:
            topic = self.spec.topic
            status, reason = "degraded", f"topic {topic!r} does not exist: eventbus topics create {topic}"
        elif not self._is_caught_up:
            status, reason = "starting", f"catching up, {following.lag:,} records to go"
        elif held.broken:
            first = next(iter(held.broken.values()))
            status, reason = "degraded", f"{len(held.broken)} entries are not known: {first}"
        elif following.trouble:
            status, reason = "degraded", f"it stands still, {following.trouble}"
        details = {"entries": len(held.entries), "size_bytes": held.size_bytes, "lag": following.lag}
        return PartHealth(part=part, status=status, reason=reason, details=details)
