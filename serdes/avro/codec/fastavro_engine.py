"""Encode and decode plain data with fastavro, for `Avro(engine="fastavro")`.

fastavro takes the place of the generated functions where it gives the same values and bytes, and where hostile bytes
cannot make it build more than they pay for. What it refuses is left to the generated functions, so errors name the
field. So are messages of more bytes than a message may have items, so the limits of `guards` hold.

Not left to fastavro:

- Recursive schemas (a message of 5 KB ends the process), decimals (``1E+2000000`` hangs it) and fields without a byte
  (five bytes describe 20 million nulls).
- Reading with another schema than that of the writer: fastavro returns the default of a nested record without the
  defaults of its fields, and one object for all records.
- Typed values: it would not write a value as the branch of the value's class.
- Values that the schema does not allow: it writes ``2**31`` as an ``int`` and ``None`` as ``false``, so what it has
  written is read back and compared.
"""

# fastavro's type hints leave schemas open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import suppress
from io import BytesIO
from typing import Any, Final

from serdes.avro.checks import same_schema
from serdes.avro.codec.guards import MAX_ITEMS, least_bytes
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.shapes import Entries, Shape, check_of, shape_of
from serdes.avro.codec.writer import Encoder
from serdes.avro.limits import inner
from serdes.avro.schema import Map, Record, Schema, Union
from serdes.avro.text import to_text

_LOGICAL_TYPES: Final = defaultdict(
    lambda: (None,),
    int=(None, "date"),
    long=(None, *(f"{kind}-{unit}" for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros"))),
    string=(None, "uuid"),
)
"""The logical types that fastavro reads as the generated functions do. A decimal such as 1E+2000000 hangs it."""


def fastavro() -> Any:
    """Return the module. Raises ModuleNotFoundError with what to install."""
    try:
        import fastavro
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "engine='fastavro' and Avro files need a library that is not installed (fastavro): "
            'pip install "eventbus-log[avro]"',
            name="fastavro",
        ) from None
    return fastavro


def parsed(schema: Schema) -> Any:
    """Return a schema in fastavro's form."""
    return fastavro().parse_schema(json.loads(to_text(schema)))


def new_decoder(engine: str, writer: Schema, reader: Schema, annotation: Any) -> Decoder:
    """Return the decoder of an engine. Raises AvroTypeError as `Decoder` does."""
    if engine == "fastavro" and _is_plain(writer, annotation) and same_schema(writer, reader) and _is_served(writer):
        return _LibraryDecoder(writer, reader, annotation)
    return Decoder(writer, reader, annotation)


def new_encoder(engine: str, schema: Schema, annotation: Any) -> Encoder:
    """Return the encoder of an engine. Raises AvroTypeError as `Encoder` does."""
    if engine == "fastavro" and _is_plain(schema, annotation) and _is_served(schema, written=True):
        return _LibraryEncoder(schema, annotation)
    return Encoder(schema, annotation)


class _LibraryDecoder(Decoder):
    def __init__(self, writer: Schema, reader: Schema, annotation: Any) -> None:
        super().__init__(writer, reader, annotation)
        read, known, generated = fastavro().schemaless_reader, parsed(writer), self.decode

        def decode(data: bytes, at: int) -> Any:
            if len(data) <= MAX_ITEMS:
                buffer = BytesIO(data)
                buffer.seek(at)
                with suppress(Exception):
                    value = read(buffer, known, None)
                    if buffer.tell() == len(data):
                        return value
            return generated(data, at)

        self.decode = decode


class _LibraryEncoder(Encoder):
    """Reads back what fastavro has written, because fastavro writes None as false and 2**31 as an int."""

    def __init__(self, schema: Schema, annotation: Any) -> None:
        super().__init__(schema, annotation)
        write, known, generated = fastavro().schemaless_writer, parsed(schema), self.encode
        read = Decoder(schema, schema, Any).decode

        def encode(value: Any, prefix: bytes) -> bytes:
            buffer = BytesIO()
            buffer.write(prefix)
            with suppress(Exception):
                write(buffer, known, value)
                data = buffer.getvalue()
                if read(data, len(prefix)) == value:
                    return data
            return generated(value, prefix)

        self.encode = encode


def _is_plain(schema: Schema, annotation: Any) -> bool:
    """True for ``Any``, and for a ``dict`` of anything where that is what the schema describes."""
    shape = shape_of(annotation)
    if check_of(annotation) is not None:
        return False
    if isinstance(shape, Entries):
        return isinstance(schema, (Record, Map)) and type(shape_of(shape.value)) is Shape
    return type(shape) is Shape


def _is_served(schema: Schema, *, written: bool = False) -> bool:
    """True if fastavro has the types, and each field and item takes a byte, which bounds what bytes can describe.

    It chooses the branch of a union that is written differently, unless the only choice is null.
    """
    done: set[int] = set()
    least: dict[int, int] = {}

    def served(schema: Schema, inside: frozenset[int] = frozenset()) -> bool:
        if id(schema) in done:
            return True
        if id(schema) in inside or schema.props.get("logicalType") not in _LOGICAL_TYPES[schema.type]:
            return False  # a recursive message ends the process in fastavro
        children = inner(schema)
        if isinstance(schema, Union):
            if written and not schema.is_optional:
                return False
        elif any(least_bytes(child, least) == 0 for child in children):
            return False
        if not all(served(child, inside | {id(schema)}) for child in children):
            return False
        done.add(id(schema))
        return True

    return served(schema)
