"""Limits of a schema's text, checked before any other work, because the text may come from any client."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from serdes.avro.schema import Array, AvroSchemaError, Map, Named, Record, Schema, Union
from serdes.nesting import is_too_deep

MAX_TEXT: Final = 1 << 20
"""Bytes of a text in UTF-8."""
MAX_NAMED_TYPES: Final = 1_000
"""Records, enums and fixed of a schema and of all that it refers to."""
MAX_DEPTH: Final = 64
"""Types inside types, counted where a name is first met."""
MAX_JSON_DEPTH: Final = 256
"""Brackets inside brackets: a type takes up to three of them for itself, and a default may be deep too."""
MAX_NUMBER: Final = 1_000
"""Digits of a number, as in Jackson."""

_STRING: Final = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'  # one without an end goes on to the end: no text is read twice
_COMMENTS: Final = re.compile(rf"{_STRING}|//[^\r\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_BLANK: Final = "".join(map(chr, range(0x21)))
"""The characters that Java's String.trim removes."""


def load(text: str) -> Any:
    """The JSON value of a schema's text. Comments are allowed in front and inside, as in Java."""
    if len(text) > MAX_TEXT or (not text.isascii() and len(text.encode(errors="replace")) > MAX_TEXT):
        raise AvroSchemaError("$", f"the text is longer than {MAX_TEXT:,} bytes; split it into referenced schemas")
    if is_too_deep(text.encode(errors="replace"), MAX_JSON_DEPTH):
        raise AvroSchemaError("$", f"brackets are nested deeper than {MAX_JSON_DEPTH}; name the inner types")
    start = text.lstrip(" \t\r\n")
    if start[:1] == '"' or "/" not in start:  # the common case: nothing that could be a comment outside a string
        return _decode(start)
    try:
        return _decode(start)
    except AvroSchemaError:
        bare = _COMMENTS.sub(lambda found: found[0] if found[0][0] == '"' else " ", start)
        if bare == start or start.rstrip(_BLANK)[-1:] != bare.rstrip(_BLANK)[-1:]:
            raise
        return _decode(bare.lstrip(" \t\r\n"))


def _decode(text: str) -> Any:
    try:
        value, end = _decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}" if text else "the text is empty"
        raise AvroSchemaError("$", reason) from None
    except RecursionError:  # on a stack that is deep already
        raise AvroSchemaError("$", "brackets are nested too deeply") from None
    if rest := text[end:].strip(_BLANK):
        raise AvroSchemaError("$", f"there is more after the end of the schema: {rest[:40]!r}")
    return value


def _constant(name: str) -> Any:
    raise AvroSchemaError("$", f'not JSON: {name}; a default that is not a finite number is a string: "{name}"')


def _int(digits: str) -> int:
    if len(digits) > MAX_NUMBER:
        raise AvroSchemaError("$", f"a number has more than {MAX_NUMBER} digits")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > MAX_NUMBER:
        raise AvroSchemaError("$", f"a number has more than {MAX_NUMBER} digits")
    return float(digits)


_decoder: Final = json.JSONDecoder(parse_constant=_constant, parse_int=_int, parse_float=_float)


def inner(schema: Schema) -> tuple[Schema, ...]:
    """Return the types directly inside a type, in the order in which a text names them."""
    match schema:
        case Record():
            return tuple(field.schema for field in schema.fields)
        case Array():
            return (schema.items,)
        case Map():
            return (schema.values,)
        case Union():
            return schema.branches
        case _:
            return ()


def check_depth(schema: Schema) -> None:
    """Refuses what is deep only through its names: each type one level, each naming the next."""
    seen: set[int] = set()
    waiting = [(schema, 1)]
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, Named):
            if id(node) in seen:
                continue
            seen.add(id(node))
        if depth > MAX_DEPTH:
            raise too_deep("$")
        waiting.extend((child, depth + 1) for child in reversed(inner(node)))


def too_deep(path: str) -> AvroSchemaError:
    return AvroSchemaError(path, f"types are nested deeper than {MAX_DEPTH}; make the schema flatter")
