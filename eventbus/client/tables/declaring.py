"""`EventBus.table`: what declares tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

import msgspec

from eventbus.broker import TopicSpec
from eventbus.client.tables.table import Fold, History, Table, table_spec
from eventbus.errors import ConfigError

K = TypeVar("K")
V = TypeVar("V")


class TableDeclarations(ABC):
    """The tables of a bus."""

    def __init__(self, tables: dict[str, Table[Any, Any]]) -> None:
        self._tables = tables

    @property
    @abstractmethod
    def is_running(self) -> bool: ...

    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        of: str | None = None,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> Table[K, V]: ...

    @overload
    def table(
        self,
        name: str,
        *,
        key: type[K],
        value: type[Any],
        of: str | None = None,
        fold: Callable[[V, Any], V | None],
        initial: Callable[[], V] | None = None,
        history: History = "whole",
        on_error: Literal["stop", "skip"] = "stop",
    ) -> Table[K, V]: ...

    @overload
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
        """Declare a table of a topic: caught up before the handlers start, looked up as a mapping; see `Table`.

        Without ``fold`` an entry is the last ``value`` of its ``key``, and a null takes it away; the topic is compacted
        (created so if it is missing, refused if it is not). With ``fold`` an entry is a state, made by ``fold(state,
        event)`` of all events of its key; the first state is ``initial()``, or None; None takes the entry away. Then
        ``value`` is the type of the events, and the topic keeps all of them: one whose events are gone is refused,
        unless ``history="partial"``. ``of``: the topic, if it is not called like the table. ``on_error``: of a record
        that cannot be read or folded, "stop" refuses to start, and later makes looking up its entry raise TableError;
        "skip" passes over the record. Raises ConfigError.
        """
        if self.is_running:
            raise ConfigError(f"bus.table({name!r}): declare tables before the bus starts")
        table: Table[Any, Any] = Table(table_spec(name, key, value, of, fold, initial, history, on_error))
        if name in self._tables:
            raise ConfigError(f"bus.table({name!r}) is declared twice: name the second one otherwise, and say of=")
        self._tables[name] = table
        return table

    def _with_tables(self, declared: Mapping[str, TopicSpec]) -> dict[str, TopicSpec]:
        """Topics of tables too, with the settings that tables need, unless they are declared with others."""
        topics = dict(declared)
        for table in self._tables.values():
            spec = topics.get(table.topic, TopicSpec(table.topic))
            topics[table.topic] = msgspec.structs.replace(spec, configs={**table.topic_configs, **spec.configs})
        return topics
