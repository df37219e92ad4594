"""Refuse, in the task, decoded records that the table cannot hold, so that they reach the quarantine.

A limit that only the driver's commit enforces would stop the topic permanently at the first record that exceeds it.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from eventbus.errors import SerializationError
from spark_sinks.decoding.values import Decoded
from spark_sinks.partitions import unfit_values
from spark_sinks.shape import COORDINATES, KEY, TOMBSTONE, quarantine_schema
from spark_sinks.stage import Layout

if TYPE_CHECKING:
    import pyarrow as pa


def without_unfit(decoded: Decoded, source: pa.RecordBatch, upsert: tuple[str, ...], layout: Layout) -> Decoded:
    """Move rows without a key to upsert by, and rows that the table cannot hold, to the rejected records."""
    import numpy as np
    import pyarrow as pa

    rows = decoded.rows
    reasons = np.full(rows.num_rows, None, object)
    for mask, reason in (*_keyless(rows, upsert), *_beyond_limits(rows, layout)):
        reasons[mask & (reasons == None)] = reason  # noqa: E711 - element by element
    fit = reasons == None  # noqa: E711
    if fit.all():
        return decoded
    bad = rows.filter(pa.array(~fit))
    places = {pair: row for row, pair in enumerate(_pairs(source, "partition", "offset"))}
    records = source.take(pa.array([places[pair] for pair in _pairs(bad, "_partition", "_offset")]))
    columns = [bad.column(name) for name in COORDINATES]
    columns += [records.column(name).cast(pa.binary()) for name in ("key", "value")]
    columns += [pa.nulls(bad.num_rows, pa.int32()), pa.array(reasons[~fit].tolist(), pa.string())]
    rejected = pa.RecordBatch.from_arrays(columns, schema=quarantine_schema())
    if decoded.rejected is not None:
        rejected = pa.concat_batches([decoded.rejected, rejected])
    return Decoded(rows.filter(pa.array(fit)), rejected, decoded.unknown)


def check_places(rows: pa.RecordBatch, layout: Layout) -> None:
    """Raise `SerializationError` for a row that the table cannot hold; a transform's rows cannot be quarantined."""
    import numpy as np

    for mask, reason in _beyond_limits(rows, layout):
        row = int(np.flatnonzero(mask)[0])
        where = ""
        if {*COORDINATES} <= {*rows.schema.names}:
            topic, partition, offset = (rows.column(name)[row].as_py() for name in COORDINATES[:3])
            where = f" made of {topic}-{partition} at offset {offset}"
        raise SerializationError(
            f"A row{where} cannot be landed: {reason}. Nothing of this batch was landed. Give the row another value in "
            f"transform= or partition_by=."
        )


def _keyless(rows: pa.RecordBatch, upsert: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    import numpy as np

    if not upsert:
        return
    names = rows.schema.names
    gone = np.zeros(rows.num_rows, bool)
    if TOMBSTONE in names:
        gone = rows.column(TOMBSTONE).to_numpy(zero_copy_only=False).astype(bool)
    key = KEY if KEY in names else "key"
    keyless = _is_null(rows.column(key)) & gone
    for name in upsert:
        if name in names:  # else the driver raises an error for the column
            keyless |= _is_null(rows.column(name)) & ~gone
    if keyless.any():
        yield keyless, f"the table is upserted by {', '.join(upsert)}, and the record has none"


def _beyond_limits(rows: pa.RecordBatch, layout: Layout) -> Iterator[tuple[Any, str]]:
    by = layout.partition_by
    for name in by:
        if name in rows.schema.names:
            for found, reason in unfit_values(name, rows.column(name), in_files=layout.in_files, columns=len(by)):
                mask = found.to_numpy(zero_copy_only=False)
                if mask.any():
                    yield mask, reason
    if layout.limits is not None:
        yield from layout.limits(rows)


def _pairs(batch: pa.RecordBatch, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


def _is_null(column: Any) -> Any:
    return column.is_null().to_numpy(zero_copy_only=False)
