"""The connectors of a bus: created from properties, checked together, and run alongside its handlers."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from eventbus.backends.clock import Clock, system_clock
from eventbus.client.health import PartHealth
from eventbus.client.metrics import Sample
from eventbus.connect.connector import Context, SourceConnector
from eventbus.connect.converters import make_converter
from eventbus.connect.keys import SINK_KEYS, SOURCE_KEYS, WORKER_KEYS
from eventbus.connect.offsets import OffsetTopic
from eventbus.connect.plugins import AnyConnector, find
from eventbus.connect.running import Run
from eventbus.connect.settings import Properties, read
from eventbus.connect.sink_run import SinkRun
from eventbus.connect.source_run import SourceRun
from eventbus.errors import ConfigError, ConnectorsFailed
from eventbus.topic_patterns import check_pattern, matches

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

logger = logging.getLogger("eventbus.connect")

Config = str | os.PathLike[str] | Mapping[str, Any] | Properties
"""A properties file, or its content as a dict."""

_DEFAULTS = "topic.creation.default."


class Connectors:
    """Connectors that run with a bus, as a `Part` of it::

        bus.include(Connectors("source.properties", "sink.properties"))

    Each is a properties file, or a dict with the same keys. ``worker``: settings for all of them, such as converters.
    ``ends``: raise ConnectorsFailed, which ends the bus, when all have failed permanently; otherwise failures are in
    `runs` and in the log. `bus.drain()` waits until sources have copied what exists now, and sinks have written it.

    Raises ConfigError: a setting is missing, misspelt or wrong, or two connectors have the same name.
    """

    def __init__(
        self,
        *connectors: Config,
        worker: Config | None = None,
        note: Callable[[str], None] | None = None,
        ends: bool = False,
    ) -> None:
        self._note = note or logger.warning
        self._ends = ends
        self.notes: list[str] = []
        """Notes about ignored settings."""
        self._worker = Properties("the worker's settings", {}) if worker is None else Properties.of(worker)
        self.settings = read(self._worker, WORKER_KEYS, "the worker", self.notes)
        """The checked settings of the worker."""
        if not connectors:
            raise ConfigError("no connector: give a properties file for each")
        self._check_twice(connectors)
        self.runs: list[Run] = [self._made(Properties.of(one)) for one in connectors]
        """The runs of the connectors, in order."""
        self._check_names(connectors)
        self._offsets = self._offset_topic()
        self._clock: Clock = system_clock
        self._seconds = self.settings["task.shutdown.graceful.timeout.ms"] / 1000
        self._bus: EventBus | None = None

    def __repr__(self) -> str:
        return f"<Connectors {', '.join(f'{run.name}: {run.state}' for run in self.runs)}>"

    # what is given ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_twice(connectors: Iterable[Config]) -> None:
        seen: set[Path] = set()
        for one in connectors:
            if isinstance(one, (Mapping, Properties)):
                continue
            path = Path(one).resolve()
            if path in seen:
                raise ConfigError(f"{one} is given twice: each connector has a file, and a name, of its own")
            seen.add(path)

    def _check_names(self, connectors: Iterable[Config]) -> None:
        origins: dict[str, str] = {}
        for run, given in zip(self.runs, connectors, strict=True):
            origin = Properties.of(given).origin
            if run.name in origins:
                raise ConfigError(
                    f"{origins[run.name]} and {origin} both name their connector {run.name!r}: offsets are kept by name"
                )
            origins[run.name] = origin

    def _made(self, properties: Properties) -> Run:
        given = properties.get("connector.class")
        if given is None:
            raise ConfigError(f"{properties.origin}: a connector needs connector.class=FileStreamSource, for one")
        kind = find(given.strip(), properties.place("connector.class"))
        is_source = issubclass(kind, SourceConnector)
        own = {key.name for key in kind.keys}
        known = [key for key in (SOURCE_KEYS if is_source else SINK_KEYS) if key.name not in own]
        what = f"connector {kind.__name__}"
        settings = read(properties, [*known, *kind.keys], what, self.notes)
        name = settings["name"]
        if not re.fullmatch(r"[^\s/\\,\x00-\x1f]{1,200}", name):
            raise ConfigError(
                f"{properties.place('name')}: name={name!r}: no blanks, commas or slashes, 200 characters"
            )
        if settings["tasks.max"] > 1:
            self.notes.append(f"{properties.place('tasks.max')}: a connector is one task here; tasks.max is ignored")
        common = {**settings, **self._shared(), **_overrides(properties, is_source, self._worker)}
        context = Context(name, settings, properties.place, self._now, self._emit_note)
        make = partial(_make, kind)
        make(context)  # it raises errors about its settings now
        converters = [
            make_converter(self._worker, properties, one, self.notes) for one in ("key.converter", "value.converter")
        ]
        if is_source:
            configs = {
                key.removeprefix(_DEFAULTS): one.value
                for key, one in properties.values.items()
                if key.startswith(_DEFAULTS) and key not in {known.name for known in SOURCE_KEYS}
            }
            return SourceRun(
                name, make, context, *converters, common, offsets=self._offset_topic(), topic_configs=configs
            )
        return SinkRun(name, make, context, *converters, common, **self._subject(properties, settings))

    def _shared(self) -> dict[str, Any]:
        return {key: self.settings[key] for key in ("topic.creation.enable", "offset.flush.interval.ms")}

    def _offset_topic(self) -> OffsetTopic:
        of = self.settings
        factor = of["offset.storage.replication.factor"]
        return OffsetTopic(of["offset.storage.topic"], of["offset.storage.partitions"], factor)

    def _subject(self, properties: Properties, settings: Mapping[str, Any]) -> dict[str, Any]:
        topics: tuple[str, ...] = settings["topics"]
        pattern: str | None = settings["topics.regex"]
        dead: str = settings["errors.deadletterqueue.topic.name"]
        if bool(topics) == bool(pattern):
            raise ConfigError(f"{properties.origin}: a sink needs topics or topics.regex, one of the two")
        if pattern:
            check_pattern(pattern, f"{properties.place('topics.regex')}: topics.regex={pattern}")
        if dead and (matches(pattern, dead) if pattern else dead in topics):
            raise ConfigError(
                f"{properties.place('errors.deadletterqueue.topic.name')}: the sink reads {dead!r} itself: its dead "
                "letters would go round for ever"
            )
        if dead and settings["errors.tolerance"] == "none":
            self.notes.append(
                f"{properties.place('errors.deadletterqueue.topic.name')}: nothing goes to {dead!r} unless "
                "errors.tolerance=all: a record at fault stops the connector"
            )
        return {"topics": topics, "pattern": pattern or None}

    # life ------------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return self._clock()

    def _emit_note(self, text: str) -> None:
        self._note(text)

    async def start(self, bus: EventBus) -> None:
        """Start all connectors. Raises ConfigError for an offsets topic that would lose them."""
        timers = bus.context.backend.timers
        self._clock = cast("Clock", timers) if callable(timers) else system_clock  # a test's clock is both
        if any(run.kind == "source" for run in self.runs):
            await self._offsets.create(bus)
        self._bus = bus  # from here on there is something to stop
        for run in self.runs:
            run.begin(bus)
            bus.context.start_soon(run.run)
        bus.context.start_soon(self._watch)

    async def _watch(self) -> None:
        for run in self.runs:
            await run.ended.wait()
        failed = [f"{run.name}: {run.error}" for run in self.runs if run.state == "failed"]
        if self._ends and len(failed) == len(self.runs):
            raise ConnectorsFailed(f"no connector runs any more ({'; '.join(failed)})")

    async def drain(self) -> bool:
        """Return when sources have copied what exists now, and sinks have written what is in their topics."""
        sources = [await run.drain() for run in self.runs if run.kind == "source"]
        sinks = [await run.drain() for run in self.runs if run.kind == "sink"]
        return any(sources) or any(sinks)

    async def aclose(self) -> None:
        """Finish the current work, within ``task.shutdown.graceful.timeout.ms``."""
        try:
            if self._bus is not None:
                await self._stop(self._bus)
        finally:
            self._bus = None

    async def _stop(self, bus: EventBus) -> None:
        for run in self.runs:
            run.stop()
        with bus.context.backend.timers.move_on_after(self._seconds) as scope:
            for run in self.runs:
                await run.ended.wait()
        if scope.cancelled_caught:
            slow = ", ".join(run.name for run in self.runs if not run.ended.is_set())
            self._emit_note(
                f"{slow}: not stopped within {self._seconds:g} s, and was abandoned; nothing of it is stored"
            )

    def health(self) -> PartHealth:
        """Degraded while a connector has failed, or waits to start again."""
        details = {run.name: run.state for run in self.runs}
        for run in self.runs:
            if run.error is not None:
                what = "has failed" if run.state == "failed" else "waits to begin again"
                reason = f"connector {run.name!r} {what}: {type(run.error).__name__}: {run.error}"
                return PartHealth(part="connectors", status="degraded", reason=reason, details=details)
        return PartHealth(part="connectors", status="ok", reason=f"{len(self.runs)} run", details=details)

    def samples(self) -> Iterable[Sample]:
        """Yield samples for `EventBus.metrics`."""
        for run in self.runs:
            labels = {"connector": run.name, "kind": run.kind}
            yield Sample("eventbus_connect_records_total", labels, run.records, "counter")
            yield Sample("eventbus_connect_errors_total", labels, run.errors, "counter")
            yield Sample("eventbus_connect_restarts_total", labels, run.restarts, "counter")
            yield Sample("eventbus_connect_running", labels, float(run.state == "running"), "gauge")


def _make(kind: AnyConnector, context: Context) -> Any:
    return kind(context)


def _overrides(properties: Properties, is_source: bool, worker: Properties) -> dict[str, dict[str, str]]:
    """Return client settings of the worker and the connector, which take precedence."""
    what = "producer" if is_source else "consumer"
    found = {**worker.below(f"{what}.").values, **properties.below(f"{what}.override.").values}
    refused = {"transactional.id", "enable.idempotence", "acks", "group.id", "enable.auto.commit"} & found.keys()
    if refused:
        name = min(refused)
        raise ConfigError(f"{found[name].place}: {name} is the connector's own: leave it out")
    return {f"{what}.override.": {key: one.value for key, one in found.items()}}
