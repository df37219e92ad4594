"""Collect the types that a bus reads and writes, and prepare their schemas before its handlers start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.client.handling.result_serdes import arms_of
from eventbus.errors import ConfigError, SchemaUnavailable
from eventbus.types import ConsumerRecord
from serdes import SchemaRegistryError, Serde, serde_for
from serdes.base import SchemaSerde, for_keys
from serdes.choose import Others, serde_of_values, split_optional, typed


class SchemaUse(msgspec.Struct, frozen=True):
    """A type that a bus reads or writes, where, and with which serde."""

    topic: str | None
    """None for topics that match a pattern, or for any topic it is sent to."""
    part: str
    """The part of the record: "key" or "value"."""
    direction: str
    """The direction: "reads" or "writes"."""
    type: Any
    serde: Serde
    name: str
    """The name of the handler or producer function; "" for a type that is only sent."""
    function: Callable[..., Any] | None = None
    group: str | None = None

    def __str__(self) -> str:
        who = f"{self.name!r} " if self.name else ""
        where = "" if self.topic is None else f" {'from' if self.direction == 'reads' else 'to'} topic {self.topic!r}"
        return f"{who}{self.direction} {getattr(self.type, '__name__', self.type)}{where}"


Members = Sequence[tuple[Handler[Any, Any], str]]
"""Handlers, each with its group."""


def uses_of(
    members: Members, functions: Sequence[ProducerFunction[..., Any, Any]], serdes: Mapping[type, Serde]
) -> list[SchemaUse]:
    """Return the declared types: payloads of handlers, results of producer functions, and types with a serde."""
    found: list[SchemaUse] = []
    for handler, group in members:
        annotation = split_optional(handler.signature.payload)[0]
        if handler.signature.payload_name is None or annotation is ConsumerRecord:
            continue
        try:
            serde = serde_for(annotation, serdes)
        except TypeError:
            continue  # said where the handler is started
        found += [
            SchemaUse(topic, "value", "reads", annotation, serde, handler.__name__, handler.undecorated, group)
            for topic in handler.spec.topics or (None,)
        ]
    for function in functions:
        known = {**serdes, **function.serdes}
        for kind in arms_of(function.published):
            serde = _bound(f"{function.__name__!r} publishes {kind.__name__}", serde_of_values, kind, known)
            found.append(
                SchemaUse(function.spec.topic, "value", "writes", kind, serde, function.__name__, function.function)
            )
    for kind, serde in serdes.items():
        if kind is not Others:
            bound = _bound(f"serdes={{{kind.__name__}: ...}}", typed, serde, kind)
            found.append(SchemaUse(None, "value", "writes", kind, bound, ""))
    return found


def uses_of_types(topic: str, types: Sequence[Any], key: Any, serdes: Mapping[type, Serde]) -> list[SchemaUse]:
    """Return the uses for writing values and keys of these types to ``topic``."""
    found: list[SchemaUse] = []
    for part, annotation in (*(("value", one) for one in types), *([] if key is None else [("key", key)])):
        for kind in arms_of(annotation):
            serde = _bound(f"{kind.__name__} in topic {topic!r}", serde_of_values, kind, serdes)
            found.append(SchemaUse(topic, part, "writes", kind, for_keys(serde) if part == "key" else serde, ""))
    return found


def _bound(where: str, bind: Callable[..., Serde], *arguments: Any) -> Serde:
    try:
        return bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


async def prepare(uses: Sequence[SchemaUse]) -> None:
    """Resolve and check all schemas. Raises ConfigError that names the use, or SchemaUnavailable."""
    # Writes first, so that types that are read are checked against them too.
    in_order = sorted(uses, key=lambda use: use.direction, reverse=True)
    wanted = [(use, use.serde) for use in in_order if isinstance(use.serde, SchemaSerde)]
    if wanted:
        await anyio.to_thread.run_sync(_prepare, wanted, abandon_on_cancel=True)


def _in_words(error: SchemaRegistryError) -> str:
    """Return the place, the reason and the fix, if the registry reports them; else its text."""
    findings: Sequence[Any] = getattr(error, "findings", ())
    return "; ".join(f"{one.explanation}; {one.fix}" for one in findings) or str(error)


def _prepare(wanted: Sequence[tuple[SchemaUse, SchemaSerde]]) -> None:
    for use, serde in wanted:
        try:
            serde.prepare(use.topic, writes=use.direction == "writes")
        except SchemaRegistryError as error:
            if error.is_retriable:
                raise SchemaUnavailable(f"{use}: {error}") from error
            raise ConfigError(f"{use}: the schema registry refuses it: {_in_words(error)}") from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{use}: {error}") from error
