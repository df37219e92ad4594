"""The relay as a part of a bus: it starts with the bus, survives outages, and stops with the bus."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, TypedDict

import anyio
import anyio.lowlevel

from eventbus.backends.clock import RealTimers, Timers
from eventbus.client.health import PartHealth
from eventbus.client.threads import Home
from eventbus.durations import Milliseconds, setting_ms
from eventbus.errors import ConfigError, EventBusError, InvalidProducerEpoch, ProducerFenced
from outbox.database import Database, now_sql, proxy_advice, trouble_of
from outbox.relay.lease_keeper import LOOKS_IN_A_LEASE, Settings
from outbox.relay.metrics import RelayMetrics
from outbox.relay.releases import Releases
from outbox.relay.shard_leases import MOST_LEASE_MS, LeaseLost, Now
from outbox.relay.transactions import check_isolation, engine_for
from outbox.relay.work import Work
from outbox.table_names import channel_of, full_name
from outbox.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from eventbus import EventBus
    from eventbus.client.health import BusStatus
    from eventbus.client.metrics import Sample
    from outbox.notify import Listener
    from outbox.outbox import Outbox

logger = logging.getLogger("outbox")

_CONFLICT_SECONDS = 0.02
_CLOSE_SECONDS = 10.0
"""How long a batch in flight may take to finish when the bus closes."""
_FENCED = (ProducerFenced, InvalidProducerEpoch)


class RelayOptions(TypedDict, total=False):
    """The options of `Relay`."""

    delivery: Literal["exactly-once", "at-least-once"]
    batch_size: int
    on_poison: Literal["block", "skip"]
    lease_ms: Milliseconds
    poll_ms: tuple[int, int]
    listen: bool
    create_tables: bool
    patience_ms: Milliseconds


class Relay:
    """Publishes the events of an outbox, each once, in the order of each key. Include it in a bus::

        bus.include(outbox.relay())

    Any number of relays, in any number of processes, share the work: keys are divided into shards, and each shard
    belongs to one relay at a time. With ``delivery="exactly-once"`` each batch is published in a transaction of the
    log, together with a receipt that lists its rows. Consumers with ``isolation_level="read_committed"`` (the default)
    then read each event once, whatever process dies and whenever. "at-least-once" needs no transactions.
    """

    def __init__(
        self,
        outbox: Outbox,
        engine: Engine | AsyncEngine,
        *,
        delivery: Literal["exactly-once", "at-least-once"] = "exactly-once",
        batch_size: int = 5_000,
        on_poison: Literal["block", "skip"] = "block",
        lease_ms: Milliseconds = 9_000,
        poll_ms: tuple[int, int] = (5, 2_500),
        listen: bool = True,
        create_tables: bool = True,
        patience_ms: Milliseconds = 600_000,
    ) -> None:
        """``batch_size`` is the maximum number of rows in a transaction. ``on_poison`` decides about later events with
        the key of an event that the log permanently refuses: they wait ("block"), or only the refused event is
        quarantined ("skip"). ``lease_ms`` is how long other relays wait before they take over from a dead one.
        ``poll_ms`` is the shortest and the longest wait for new rows without a notification. ``listen`` uses
        PostgreSQL's notifications. ``create_tables`` creates missing tables. ``patience_ms`` is how long events wait in
        the outbox for a topic that does not exist, or whose ACL is missing, before they are quarantined. Raises
        ConfigError.
        """
        if delivery not in ("exactly-once", "at-least-once"):
            raise ConfigError(f'delivery={delivery!r}: "exactly-once" or "at-least-once"')
        if on_poison not in ("block", "skip"):
            raise ConfigError(f'on_poison={on_poison!r}: "block" or "skip"')
        if isinstance(batch_size, bool) or not 1 <= batch_size <= 10_000:
            raise ConfigError(f"batch_size={batch_size!r}: 1 to 10,000 rows")
        lease_ms = setting_ms(lease_ms)
        if not isinstance(lease_ms, int) or not 100 <= lease_ms <= MOST_LEASE_MS:
            raise ConfigError(f"lease_ms={lease_ms!r}: 100 to {MOST_LEASE_MS:,}")
        if not hasattr(poll_ms, "__len__") or len(poll_ms) != 2 or not 1 <= poll_ms[0] <= poll_ms[1]:
            raise ConfigError(f"poll_ms={poll_ms!r}: the shortest wait and the longest, in milliseconds")
        patience_ms = setting_ms(patience_ms)
        if not isinstance(patience_ms, int) or patience_ms < 0:
            raise ConfigError(f"patience_ms={patience_ms!r}: 0 or more")
        self._outbox = outbox
        self._tables = outbox.tables
        # A database may never answer. Abandoned transactions are guarded by the lease, or only delete published rows.
        self._database = Database(engine_for(engine), abandons=True)
        self._has_own_engine = self._database.engine is not engine
        self._settings = Settings(
            exactly_once=delivery == "exactly-once",
            blocks=on_poison == "block",
            batch_size=batch_size,
            lease_ms=lease_ms,
            poll_ms=poll_ms,
            patience_ms=patience_ms,
        )
        self._listens = listen
        self._creates_tables = create_tables
        self._metrics = RelayMetrics(outbox=_label(outbox, self._database))
        self._now: Now = now_sql
        self._timers: Timers = RealTimers()
        """Real time even if the bus runs on a test's clock, because the database does."""
        self._at = _nothing
        """Awaited after each step with its name. Tests use it to kill a relay there."""
        self._work: Work | None = None
        self._wake = anyio.Event()
        self._closing = False
        self._ended = anyio.Event()
        self._scope: anyio.CancelScope | None = None
        self._trouble = ""
        self._drained = 0
        """Number of published events when `drain` last returned."""
        self._quiet = anyio.Event()
        """Set and replaced after each step that leaves nothing to do."""
        self._remove_wake: Callable[[], None] = _forget
        self._listener: Listener | None = None
        self._watch: Watch | None = None
        """Monitors the whole outbox while the relay runs."""

    def __repr__(self) -> str:
        return f"<Relay of outbox {self._tables.name!r}, {self.health().status}>"

    # start and stop
    # -----------------------------------------------------------------------------------------------------

    async def start(self, bus: EventBus) -> None:
        """Start publishing. If the database is down, the relay waits for it.

        Raises ConfigError for tables that do not match, and for an unsuitable engine.
        """
        self._closing, self._trouble = False, ""
        self._wake, self._ended, self._quiet = anyio.Event(), anyio.Event(), anyio.Event()
        await self._prepare()
        self._work = Work(
            bus,
            self._database,
            self._tables,
            self._settings,
            self._metrics,
            self._now,
            lambda step: self._at(step),
            self._timers,
        )
        home = Home()

        def wake() -> None:
            home.call(self._woken)

        self._work.cleaner.on_clean = self._wake_up
        self._remove_wake = self._outbox.listeners.add(wake)
        if self._listens:
            from outbox.notify import Listener

            self._listener = Listener(self._database.engine, channel_of(self._tables.name, self._tables.schema), wake)
            self._listener.start()
        bus.context.start_soon(self._live)

    async def _prepare(self) -> None:
        try:
            await self._database.run(check_isolation)
            if self._creates_tables:
                await self._outbox.create_tables_async(self._database.engine)
        except Exception as error:  # the loop retries and reports an outage
            if advice := proxy_advice(error):
                raise ConfigError(
                    f"The relay of outbox {self._tables.name!r} cannot use its engine. {advice}"
                ) from error
            if isinstance(error, ConfigError) or trouble_of(error) == "other":
                raise
            self._say(error)

    async def aclose(self) -> None:
        """Finish the batch in flight within ten seconds, and release shards and slot."""
        self._closing = True
        self._wake.set()
        if self._work is not None:
            with self._work.timers.move_on_after(_CLOSE_SECONDS):
                await self._ended.wait()
            if self._scope is not None:
                self._scope.cancel()
            await self._ended.wait()
            self._work = None

    async def drain(self) -> bool:
        """Wait until this relay can publish nothing more now. Return True if it has published since the last call."""
        work = self._work
        if work is None:
            return False
        takes = work.takes
        while not self._closing and not self._ended.is_set() and work.quiet_after <= takes:
            quiet = self._quiet
            self._woken()
            await quiet.wait()
        before, self._drained = self._drained, self._metrics.published
        return self._drained > before

    def _woken(self) -> None:
        if self._work is not None:
            self._work.woken()
        self._wake.set()

    def _wake_up(self) -> None:
        self._wake.set()

    # the loop --------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        work = self._work
        assert work is not None
        try:
            with anyio.CancelScope() as self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._keep, work)
                    tasks.start_soon(work.cleaner.run)
                    self._watch = Watch(self._database, self._tables, work.timers)
                    tasks.start_soon(self._watch.run)
                    releases = Releases(work, work.backend, self._database, self._tables, self._metrics)
                    tasks.start_soon(releases.run)
                    await self._go_on(work)
                    tasks.cancel_scope.cancel()
        finally:
            self._scope = None
            self._remove_wake()
            with work.timers.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._end(work)
            self._ended.set()
            self._tell_quiet()

    async def _end(self, work: Work) -> None:
        listener, self._listener = self._listener, None
        try:
            await work.finish()
        except Exception as error:  # a successor deletes what is left
            logger.warning("outbox %r: the relay could not let go of its slot: %s", self._tables.name, error)
        finally:
            # A connection that returns to its pool after the pool was disposed of, here or by its user, is never
            # closed.
            await self._database.settle(_CLOSE_SECONDS)
            if self._has_own_engine:
                await self._database.dispose()
            if listener is not None:
                await listener.aclose()

    async def _go_on(self, work: Work) -> None:
        while not self._closing:
            self._wake = anyio.Event()
            seconds = await self._step(work)
            if seconds <= 0:
                await anyio.lowlevel.checkpoint()
                continue
            self._tell_quiet()
            if not self._closing:
                with work.timers.move_on_after(seconds):
                    await self._wake.wait()

    async def _step(self, work: Work) -> float:
        """Run one step. An error only costs a wait."""
        try:
            seconds = await work.step()
        except LeaseLost as error:
            logger.warning("%s", error)
            self._metrics.lost_leases += 1
            work.forget()
            return _CONFLICT_SECONDS
        except Exception as error:  # a relay never gives up, because its service also does other work
            work.doubt()
            if isinstance(error, _FENCED):
                self._metrics.fenced += 1
                logger.warning("outbox %r: another relay had the slot meanwhile: %s", self._tables.name, error)
                return _CONFLICT_SECONDS
            if trouble_of(error) == "conflict":
                return _CONFLICT_SECONDS
            self._metrics.failures += 1
            self._say(error)
            return work.pace.failed()
        if self._trouble:
            self._trouble = ""
            logger.warning("outbox %r: the relay goes on", self._tables.name)
        return seconds

    async def _keep(self, work: Work) -> None:
        """Renew the lease, however long a batch takes."""
        while True:
            await work.timers.sleep(self._settings.lease_ms / 1000 / LOOKS_IN_A_LEASE / 2)
            try:
                await work.keeper.renew()
            except Exception as error:  # the steps run into the error too, and report it
                logger.debug("outbox %r: the lease was not renewed: %s", self._tables.name, error)

    def _say(self, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        if advice := proxy_advice(error):
            said = f"{advice}: {said}"
        if not self._trouble:
            is_known = isinstance(error, EventBusError) or trouble_of(error) != "other"
            logger.warning(
                "outbox %r: nothing is published now, the relay retries automatically: %s", self._tables.name, said,
                exc_info=None if is_known else error,
            )  # fmt: skip
        self._trouble = said

    def _tell_quiet(self) -> None:
        quiet, self._quiet = self._quiet, anyio.Event()
        quiet.set()

    # metrics and health
    # -------------------------------------------------------------------------------------------------

    def metrics(self) -> RelayMetrics:
        """Return the counters since the relay was created."""
        return self._metrics

    def samples(self) -> Iterator[Sample]:
        """Yield the counters and, from the last check of the outbox, its backlog as metrics of the bus."""
        yield from self._metrics.samples()
        if self._watch is not None:
            yield from self._watch.samples(self._metrics.outbox)

    def health(self) -> PartHealth:
        """Return whether events are published, as far as the relay knows without a query."""
        status, reason = self._status()
        metrics = self._metrics
        details = {
            "slot": metrics.slot,
            "shards": metrics.shards,
            "published": metrics.published,
            "refused": 0 if self._work is None else self._work.refused,
            "waiting_topics": [] if self._work is None else sorted({topic for topic, _ in self._work.waits.places}),
            **({} if self._work is None or self._work.due_ms is None else {"next_due_ms": self._work.due_ms}),
            "listens": "off" if self._listener is None else self._listener.state,
            **({} if self._watch is None else self._watch.details()),
        }
        return PartHealth(part=f"outbox {self._metrics.outbox}", status=status, reason=reason, details=details)

    def _status(self) -> tuple[BusStatus, str]:
        metrics, work = self._metrics, self._work
        if work is None or self._ended.is_set():
            return "failed", "the relay is not running"
        if self._trouble:
            return "degraded", f"nothing is published now, it is retried automatically: {self._trouble}"
        if work.keeper.lease is None:
            return "starting", "the relay waits for a slot"
        if work.cleaner.trouble:
            return (
                "degraded",
                f"published events are not deleted now, it is retried automatically: {work.cleaner.trouble}",
            )
        if waits := work.waits.text(work.timers.current_time()):
            return "degraded", waits
        if self._watch is not None and (trouble := self._watch.trouble()):
            return "degraded", trouble
        if work.refused:
            reason = f"events that the log refused are quarantined: {work.refused:,}. See: eventbus outbox list"
            return "degraded", reason
        return "ok", f"publishes {metrics.shards} shard(s)"


def _label(outbox: Outbox, database: Database) -> str:
    """Return the outbox's label in health and metrics, with the schema to distinguish outboxes of the same name."""
    schema = outbox.tables.schema
    schemas: dict[str | None, str | None] = database.plain.get_execution_options().get("schema_translate_map") or {}
    return full_name(outbox.name, schemas.get(schema, schema))


async def _nothing(step: str) -> None:
    """The default hook, which does nothing."""


def _forget() -> None:
    """Do nothing, because no hook is registered yet."""
