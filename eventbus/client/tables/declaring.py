"""`EventBus.table`, which declares tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

import msgspec

from eventbus import broker
from eventbus.client import tables
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.broker import TopicSpec
    from eventbus.client.tables.table import Fold, History, Table

K = TypeVar("K")
V = TypeVar("V")


class TableOptions(TypedDict, total=False):
    """Options of a table without ``fold``."""

    of: str | None
    on_error: Literal["stop", "skip"]


class FoldOptions(TableOptions, total=False):
    """Options of a table with ``fold``."""

    history: History


class TableDeclarations(ABC):
    """The tables of a bus."""

    def __init__(self, tables: dict[str, Table[Any, Any]]) -> None:
        self._tables = tables

    @property
    @abstractmethod
    def is_running(self) -> bool: ...

    @overload
    def table(self, name: str, *, key: type[K], value: type[V], **options: Unpack[TableOptions]) -> Table[K, V]: ...

    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K],
        value: type[Any],
        fold: Callable[[V, Any], V | None],
        initial: Callable[[], V] | None = None,
        **options: Unpack[FoldOptions],
    ) -> Table[K, V]: ...

    @overload
    def table(
        self,
        name: str,
        *,
        key: Any,
        value: Any,
        fold: Fold | None = None,
        initial: Callable[[], Any] | None = None,
        **options: Unpack[FoldOptions],
    ) -> Table[Any, Any]: ...

    def table(
        self,
        name: str,
        *,
        key: Any,
        value: Any,
        of: str | None = None,
        fold: Fold | None = None,
        initial: Callable[[], Any] | None = None,
        history: History = "whole",
        on_error: Literal["stop", "skip"] = "stop",
    ) -> Table[Any, Any]:
        """Declare a table of a topic, filled before the handlers start and used like a mapping; see `Table`.

        Without ``fold`` an entry is the last ``value`` of its ``key``, and a null removes it. The topic must be
        compacted; it is created like that if it is missing. With ``fold`` an entry is a state, computed by
        ``fold(state, event)`` from all events of its key. The first state is ``initial()``, or None; returning None
        removes the entry. ``value`` is then the type of the events, and the topic must keep all of them: a topic that
        has deleted events is refused unless ``history="partial"``.

        ``of`` names the topic if it differs from the table's name. ``on_error`` applies to records that cannot be read
        or folded: "stop" refuses to start, and later makes looking up the entry raise TableError; "skip" skips the
        record. Raises ConfigError.
        """
        if self.is_running:
            raise ConfigError(f"bus.table({name!r}): declare tables before the bus starts")
        table: Table[Any, Any] = tables.Table(tables.table_spec(name, key, value, of, fold, initial, history, on_error))
        if name in self._tables:
            raise ConfigError(
                f"bus.table({name!r}) is declared twice: give the second table another name, and its topic with of="
            )
        self._tables[name] = table
        return table

    def _with_tables(self, declared: Mapping[str, TopicSpec]) -> dict[str, TopicSpec]:
        """Return the topics, including those of tables with their required settings, unless they are declared
        differently.
        """
        topics = dict(declared)
        for table in self._tables.values():
            spec = topics.get(table.topic, broker.TopicSpec(table.topic))
            topics[table.topic] = msgspec.structs.replace(spec, configs={**table.topic_configs, **spec.configs})
        return topics
