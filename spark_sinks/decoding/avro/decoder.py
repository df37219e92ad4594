"""Decode a batch of framed Avro records: group them by schema id, read each group in step, and restore the order."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from serdes.avro.parse import parse
from serdes.framing import ID_SIZE, schema_named
from spark_sinks.decoding.avro.compile import compiled
from spark_sinks.decoding.avro.cursor import ENDS_EARLY, SLOW, Cursor, Data
from spark_sinks.decoding.avro.nested import Record
from spark_sinks.decoding.avro.nodes import BadValue, Reading
from spark_sinks.decoding.framing import Frame, Refusals, as_type, put_together
from spark_sinks.decoding.unite import conform
from spark_sinks.decoding.values import Decoded

_LEFT_BEHIND = "bytes are left after the value: the message has another schema than its id"
_TOO_DEEP = "records nest too deep"
_PADDING = 4_096
_FRAMED = np.uint64(1 << 32)


class Known(NamedTuple):
    """A schema: its complete text, and the columns of its fields."""

    text: str
    columns: tuple[str, ...]


class Piece(NamedTuple):
    """Rows of one schema: their numbers in the batch, and their columns."""

    rows: Any
    columns: dict[str, pa.Array]


class AvroDecoder:
    """Decodes batches. ``schemas`` maps ids to schemas, or to the reason why their records are refused."""

    def __init__(self, columns: pa.Schema, payload: int, schemas: dict[int, Known | str], frame: Frame) -> None:
        """``payload`` is the number of ``columns`` that belong to the value."""
        self._columns = columns
        self._payload = list(columns)[:payload]
        self._schemas = schemas
        self._frame = frame

    def rows(self, batch: pa.RecordBatch) -> Decoded:
        refused = Refusals()
        keys = self._frame.keys(batch, refused)
        values = _Values(batch.column("value"))
        pieces: list[Piece] = []
        unknown: set[int] = set()
        for schema_id, rows in values.by_schema(refused):
            known = self._schemas.get(schema_id)
            if known is None:
                unknown.add(schema_id)
                refused.left_out.update(rows.tolist())
            elif isinstance(known, str):
                _refuse(refused, rows, schema_id, known)
            else:
                pieces += _pieces(values, rows, schema_id, known, refused)
        payload = self._assembled(pieces, len(values), refused)
        return put_together(batch, self._columns, payload, keys, refused)._replace(unknown=frozenset(unknown))

    def _assembled(self, pieces: list[Piece], count: int, refused: Refusals) -> list[Any]:
        """Return the columns of the accepted rows, in order; null for a tombstone."""
        place = np.full(count, -1, np.int64)
        begin = 0
        for piece in pieces:
            place[piece.rows] = np.arange(begin, begin + len(piece.rows))
            begin += len(piece.rows)
        kept = refused.kept(count)
        wanted = place if kept is None else place[kept]
        is_whole = len(pieces) == 1 and len(wanted) == begin and bool((wanted == np.arange(begin)).all())
        index = None if is_whole else pa.array(wanted, mask=wanted < 0)
        columns: list[Any] = []
        for field in self._payload:
            parts = [_column(piece, field) for piece in pieces] or [pa.nulls(0, field.type)]
            column = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
            columns.append(column if index is None else column.take(index))
        return columns


def _column(piece: Piece, field: pa.Field) -> pa.Array:
    found = piece.columns.get(field.name)
    return pa.nulls(len(piece.rows), field.type) if found is None else conform(found, field.type)


def _refuse(refused: Refusals, rows: Any, schema_id: int, reason: str) -> None:
    for row in rows.tolist():
        refused.add(row, f"schema id {schema_id}: {reason}")
        refused.schema_ids[row] = schema_id


class _Values:
    """The values of a batch, without copying them."""

    def __init__(self, values: Any) -> None:
        if values.type not in (pa.binary(), pa.large_binary()):
            values = as_type(values, pa.binary())
        self._count = len(values)
        self.there = None if not values.null_count else values.is_valid().to_numpy(zero_copy_only=False)
        _, offsets, data = values.buffers()
        width = np.int64 if values.type == pa.large_binary() else np.int32
        bounds = np.zeros(1, np.int64)
        if self._count:
            bounds = np.frombuffer(offsets, width)[values.offset : values.offset + self._count + 1].astype(np.int64)
        source = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        self._source = source[bounds[0] : bounds[-1]]
        bounds -= bounds[0]
        self.start, self.end = bounds[:-1], bounds[1:]
        self._data = Data(self._source, _PADDING)
        self._padding = _PADDING

    def __len__(self) -> int:
        return self._count

    def data(self, padding: int) -> Data:
        """Return the bytes, padded so that reads may go this far past their end."""
        if padding > self._padding:
            self._data, self._padding = Data(self._source, padding), padding
        return self._data

    def value(self, row: int) -> bytes:
        return self._source[self.start[row] : self.end[row]].tobytes()

    def by_schema(self, refused: Refusals) -> list[tuple[int, Any]]:
        """Group rows by schema id. Rows without an id are refused."""
        head = self._data.words[self.start].byteswap() >> np.uint64(24)  # the magic byte and the id
        framed = (head < _FRAMED) & (self.end - self.start >= ID_SIZE)
        unframed = ~framed if self.there is None else ~framed & self.there
        for row in np.flatnonzero(unframed).tolist():
            refused.add(row, _frame_error(self.value(row)))
        if self.there is not None:
            framed &= self.there
        rows = np.flatnonzero(framed)
        if not rows.size:
            return []
        ids = head[rows]
        if (ids == ids[0]).all():
            return [(int(ids[0]), rows)]
        order = np.argsort(ids, kind="stable")
        found, begins = np.unique(ids[order], return_index=True)
        return list(zip(found.tolist(), np.split(rows[order], begins[1:]), strict=True))


def _frame_error(value: bytes) -> str:
    try:
        name = schema_named(value)
    except ValueError as error:
        return str(error)
    return f"the message names its schema by GUID ({name}): only ids are looked up here"


def _pieces(values: _Values, rows: Any, schema_id: int, known: Known, refused: Refusals) -> list[Piece]:
    """Read the rows of one schema. Rows that are read separately form another piece."""
    root = _root(known.text)
    if not root.in_step:
        return [_alone(values, rows, schema_id, known, refused)]
    everything = len(rows) == len(values)
    start, end = (values.start, values.end) if everything else (values.start[rows], values.end[rows])
    cursor = Cursor(values.data(16 * root.nodes + 64), start + ID_SIZE, end, [])
    columns = root.columns(cursor, None)
    wrong = cursor.at != cursor.end
    if wrong.any():
        cursor.fail(cursor.at > cursor.end, cursor.live, "", ENDS_EARLY)
        cursor.fail(cursor.at < cursor.end, cursor.live, "", _LEFT_BEHIND)
    pieces = [Piece(rows, dict(zip(known.columns, columns, strict=True)))]
    if cursor.why is None:
        return pieces
    for number, reason in enumerate(cursor.reasons, 1):
        _refuse(refused, rows[cursor.why == number], schema_id, reason)
    slow = rows[cursor.why == SLOW]
    return [*pieces, _alone(values, slow, schema_id, known, refused)] if slow.size else pieces


def _alone(values: _Values, rows: Any, schema_id: int, known: Known, refused: Refusals) -> Piece:
    """Read each record separately, so that only the invalid records of a batch are refused."""
    root = _root(known.text)
    read: list[dict[str, Any] | None] = []
    for row in rows.tolist():
        try:
            read.append(one(root, values.value(row)[ID_SIZE:]))
        except BadValue as error:
            _refuse(refused, np.array([row]), schema_id, str(error))
            read.append(None)
    columns = {
        column: pa.array([None if each is None else each[name] for each in read], child.type)
        for column, (name, child) in zip(known.columns, root.shown, strict=True)
    }
    return Piece(rows, columns)


def one(root: Record, data: bytes) -> dict[str, Any]:
    """Read the fields of one record. Raises BadValue."""
    reading = Reading(data)
    try:
        found = {name: child.one(reading) for name, child in root.children}
    except RecursionError:
        raise BadValue("", _TOO_DEEP) from None
    if reading.at != len(data):
        raise BadValue("", _LEFT_BEHIND)
    return found


@lru_cache(256)
def _root(text: str) -> Record:
    return compiled(parse(text, validate_defaults=False))
