"""Functions that generated code calls for single values, and queries about schemas for the generator."""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NoReturn, cast
from uuid import UUID

from serdes.avro.codec.errors import AvroDataError, AvroTypeError
from serdes.avro.codec.varint import long_bytes
from serdes.avro.limits import inner
from serdes.avro.schema import Enum, Record, Schema


class Symbols(dict[int, Any]):
    """Map the byte of an encoded enum index (twice the index) to the value that is read."""

    def __init__(self, writer: Enum, reader: Enum, as_value: Callable[[str], Any]) -> None:
        super().__init__()
        self._writer, self._reader = writer, reader
        for index, symbol in enumerate(writer.symbols):
            read_as = symbol if symbol in reader.symbols else reader.default
            if read_as is not None:
                self[index * 2] = as_value(read_as)

    def __missing__(self, byte: int) -> NoReturn:
        index, symbols = byte >> 1, self._writer.symbols
        if byte & 1 or not 0 <= index < len(symbols):
            raise AvroDataError(f"there is no symbol {index if not byte & 1 else 'of a negative index'} in {symbols}")
        raise AvroDataError(
            f"the symbol {symbols[index]!r} is none of {self._reader.fullname}, which has no default: "
            f"{', '.join(self._reader.symbols)}"
        )


def symbol_names(kind: type[enum.Enum], schema: Enum) -> dict[str, enum.Enum]:
    """Return the members by their symbols: by value where the values are the symbols, else by name."""
    by_value = {str(one.value): one for one in kind if isinstance(one.value, str)}
    by_name = {one.name: one for one in kind}
    as_value, as_name = (sum(one in known for one in schema.symbols) for known in (by_value, by_name))
    return by_value if as_value >= as_name else by_name


def member_of(kind: type[enum.Enum], schema: Enum) -> Callable[[str], Any]:
    """Return a function that maps an Avro symbol to its enum member."""
    members = symbol_names(kind, schema)

    def find(symbol: str) -> Any:
        if symbol not in members:
            raise AvroTypeError(f"{kind.__name__} has no member for the symbol {symbol!r} of {schema.fullname}")
        return members[symbol]

    return find


def constants(values: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Passes on what a Literal allows."""

    def check(value: Any) -> Any:
        if value not in values:
            raise AvroDataError(f"{value!r:.80} is none of {', '.join(map(repr, values))}")
        return value

    return check


def bad_branch(byte: int, count: int) -> NoReturn:
    raise AvroDataError(f"there is no branch {byte >> 1} in a union of {count}")


def wrong_end(at: int, size: int) -> NoReturn:
    if at > size:
        raise AvroDataError("the message ends before the value does")
    raise AvroDataError(f"{size - at} bytes are left after the value: the message has another schema than its id")


_CONSTANTS = (type(None), bool, int, float, str, bytes, date, datetime, time, Decimal, UUID, enum.Enum)


def is_constant(value: Any) -> bool:
    """May all records share it?"""
    return isinstance(value, _CONSTANTS)


def kept_apart(schema: Schema) -> set[int]:
    """Return the records whose code is a function: they hold themselves, or are met more than once."""
    seen: dict[int, Record] = {}
    found: set[int] = set()
    todo = [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, Record):
            if id(one) in seen:
                found.add(id(one))
                continue
            seen[id(one)] = one
        todo.extend(inner(one))
    return found


def as_bytes(value: Any) -> bytes:
    """Raises TypeError for what is none."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(cast("bytearray", value))
    raise TypeError(f"{value!r:.80} is {type(value).__name__}, not bytes")


def as_fixed(value: Any, size: int) -> bytes:
    """Return bytes of exactly ``size``. Raises TypeError, ValueError."""
    data = as_bytes(value)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes, where the schema says {size}")
    return data


class _SymbolBytes(dict[Any, bytes]):
    def __init__(self, schema: Enum, values: dict[Any, bytes]) -> None:
        super().__init__(values)
        self._schema = schema

    def __missing__(self, value: Any) -> NoReturn:
        symbols = ", ".join(self._schema.symbols)
        raise AvroDataError(f"{value!r:.80} is no symbol of {self._schema.fullname}: {symbols}")


def symbol_bytes(schema: Enum, kind: type[enum.Enum] | None) -> dict[Any, bytes]:
    """Symbols as they are written; an enum's members in their place."""
    written = {symbol: long_bytes(index) for index, symbol in enumerate(schema.symbols)}
    if kind is None:
        return _SymbolBytes(schema, written)
    members = symbol_names(kind, schema)
    return _SymbolBytes(schema, {member: written[symbol] for symbol, member in members.items() if symbol in written})
