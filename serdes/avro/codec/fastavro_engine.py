"""Encode and decode plain data with fastavro, for `Avro(engine="fastavro")`.

fastavro takes the place of the generated functions only where it gives the same values: for plain data, read with the
schema that it was written with. A recursive message ends the process in fastavro, and some logical types are unknown to
it, so schemas with these are compiled.
"""

# fastavro's type hints leave schemas open.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

from serdes.avro.checks import same_schema
from serdes.avro.codec.errors import AvroDataError
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.shapes import Entries, Shape, shape_of
from serdes.avro.codec.values import wrong_end
from serdes.avro.codec.writer import Encoder
from serdes.avro.limits import inner
from serdes.avro.schema import Fixed, Map, Record, Schema
from serdes.avro.text import to_text


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
        return _LibraryDecoder(writer)
    return Decoder(writer, reader, annotation)


def new_encoder(engine: str, schema: Schema, annotation: Any) -> Encoder:
    """Return the encoder of an engine. Raises AvroTypeError as `Encoder` does."""
    if engine == "fastavro" and _is_plain(schema, annotation) and _is_served(schema):
        return _LibraryEncoder(schema)
    return Encoder(schema, annotation)


class _LibraryDecoder(Decoder):
    def __init__(self, schema: Schema) -> None:
        read, known = fastavro().schemaless_reader, parsed(schema)

        def decode(data: bytes, at: int) -> Any:
            buffer = BytesIO(data)
            buffer.seek(at)
            value = read(buffer, known, None)
            if buffer.tell() != len(data):
                wrong_end(buffer.tell(), len(data))
            return value

        self.decode = decode

    def explain(self, error: Exception) -> AvroDataError:
        """Return the same error in words. fastavro does not report the field."""
        if isinstance(error, (EOFError, IndexError)):
            return AvroDataError("the message ends before the value does")
        return _in_words(error)


class _LibraryEncoder(Encoder):
    def __init__(self, schema: Schema) -> None:
        write, known = fastavro().schemaless_writer, parsed(schema)

        def encode(value: Any, prefix: bytes) -> bytes:
            buffer = BytesIO()
            buffer.write(prefix)
            write(buffer, known, value, strict_allow_default=True)
            return buffer.getvalue()

        self.encode = encode

    def explain(self, error: Exception) -> AvroDataError:
        """Return the same error in words."""
        return _in_words(error)


def _in_words(error: Exception) -> AvroDataError:
    return error if isinstance(error, AvroDataError) else AvroDataError(str(error) or type(error).__name__)


def _is_plain(schema: Schema, annotation: Any) -> bool:
    """True for ``Any``, and for a ``dict`` of anything where that is what the schema describes."""
    shape = shape_of(annotation)
    if isinstance(shape, Entries):
        return isinstance(schema, (Record, Map)) and type(shape_of(shape.value)) is Shape
    return type(shape) is Shape


def _is_served(schema: Schema, inside: frozenset[int] = frozenset(), done: set[int] | None = None) -> bool:
    """True if fastavro has the schema's logical types, and no record is inside itself. ``done``: found to be served."""
    done = set() if done is None else done
    if id(schema) in done:
        return True
    logical = schema.logical_type
    if id(schema) in inside or logical in ("duration", "big-decimal") or (logical == "uuid" and type(schema) is Fixed):
        return False
    if not all(_is_served(child, inside | {id(schema)}, done) for child in inner(schema)):
        return False
    done.add(id(schema))
    return True
