"""From an endpoint of the table to a call of the registry and the bytes of its answer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from schema_registry.errors import RegistryError
from schema_registry.http.endpoints import PARSERS, Endpoint
from schema_registry.http.wire import decode, decoded, integer, query_of

if TYPE_CHECKING:
    from schema_registry.registry import Registry

_PARTS = re.compile(r"\{(\w+)\}")
_JAVA_INT = re.compile(r"-?[0-9]{1,10}", re.ASCII)


class Operation:
    """One endpoint, ready to be called."""

    def __init__(self, endpoint: Endpoint, own: Mapping[str, Callable[..., Any]]) -> None:
        """``own``: what is answered without the registry, by name."""
        self.endpoint = endpoint
        self._own = own.get(endpoint.does)
        self._by_position = endpoint.arguments
        self._by_name = [part for part in _PARTS.findall(endpoint.path) if part not in endpoint.arguments]
        self._query = {query.name: (query.keyword, PARSERS[query.kind]) for query in endpoint.query}
        if endpoint.body is not None:
            self._lenient = msgspec.json.Decoder(endpoint.body)
            self._strict = msgspec.json.Decoder(_strict(endpoint.body))

    async def call(
        self, registry: Registry, parts: Mapping[str, bytes], query: bytes, body: bytes, *, lenient: bool
    ) -> tuple[int, bytes]:
        """Status and body. Raises RegistryError, HttpError."""
        positional, named = self._arguments(parts, query, body, lenient)
        operation = self._own or getattr(registry, self.endpoint.does)
        if self.endpoint.prepared:
            await getattr(registry, self.endpoint.prepared)(*positional)
        if named.get("format") and not self.endpoint.writes:
            await registry.prepare_format(partial(operation, *positional, **named))
        try:
            result = await _result(operation, positional, named)
        except RegistryError as error:
            # Another process on the same log may have written a moment ago what is asked for.
            if error.status != 404 or self.endpoint.writes or not await registry.catch_up():
                raise
            result = await _result(operation, positional, named)
        return self._encoded(result)

    def _arguments(
        self, parts: Mapping[str, bytes], query: bytes, body: bytes, lenient: bool
    ) -> tuple[list[Any], dict[str, Any]]:
        given = decode(body, self._lenient if lenient else self._strict) if self.endpoint.body is not None else None
        positional: list[Any] = []
        for name in self._by_position:
            if name is None or name[0] == "=":
                positional.append(name and name[1:])
            elif name[0] == ".":
                positional.append(getattr(given, name[1:]))
            else:
                positional.append(given if name == "body" else _part(name, parts[name]))
        named = {name: _part(name, parts[name]) for name in self._by_name}
        if query and self._query:
            for name, values in query_of(query).items():
                found = self._query.get(name)
                if found and (values[0] or found[1] is not PARSERS["number"]):
                    named[found[0]] = found[1](values)
        return positional, named

    def _encoded(self, result: Any) -> tuple[int, bytes]:
        match self.endpoint.form:
            case "raw":
                return 200, result.schema.encode()
            case "register":
                return 200, msgspec.json.encode(result.answer())
            case "empty":
                return 204, b""
            case "json":
                return 200, result if isinstance(result, bytes) else msgspec.json.encode(result)


async def _result(operation: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> Any:
    result = operation(*positional, **named)
    return await result if inspect.isawaitable(result) else result


def _part(name: str, text: bytes) -> Any:
    value = decoded(text)
    if name == "id":
        return integer(value)
    if name == "version":  # the registry names an invalid number in its response
        number = int(value) if _JAVA_INT.fullmatch(value) else 1 << 31
        return number if -(1 << 31) <= number < 1 << 31 else value
    return value


def _strict(body: Any) -> Any:
    """Return the same body, that takes no members it does not know."""
    if not isinstance(body, type) or not issubclass(body, msgspec.Struct):
        return cast("Any", body)
    return msgspec.defstruct(body.__name__, [], bases=(body,), forbid_unknown_fields=True, frozen=True)
