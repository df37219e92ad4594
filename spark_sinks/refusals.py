"""Refuse, in the task, decoded records that the table cannot hold, so that they reach the quarantine.

A limit that only the driver's commit enforces would stop the topic permanently at the first record that exceeds it.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eventbus.errors import SerializationError
from spark_sinks.decoding.values import Decoded
from spark_sinks.partitions import unfit_values
from spark_sinks.shape import COORDINATES, KEY, TOMBSTONE, quarantine_schema
from spark_sinks.stage import Layout

if TYPE_CHECKING:
    import pyarrow as pa


Place = tuple[int, int]
"""Partition and offset of a record."""


def without_unfit(
    decoded: Decoded,
    source: pa.RecordBatch,
    upsert: tuple[str, ...],
    layout: Layout,
    refused: Mapping[Place, str] | None = None,
) -> Decoded:
    """Move rows without a key to upsert by, and rows that the table cannot hold, to the rejected records.

    ``refused``: records that cannot be landed because of what a transform makes of them, with the reasons.
    """
    import numpy as np
    import pyarrow as pa

    rows = decoded.rows
    reasons = _reasons(rows, (*_keyless(rows, upsert), *_beyond_limits(rows, layout)))
    if refused:
        places = _pairs(rows, "_partition", "_offset")
        reasons = np.array([refused.get(place, reason) for place, reason in zip(places, reasons, strict=True)], object)
    fit = reasons == None  # noqa: E711 - element by element
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


def unfit_records(rows: pa.RecordBatch, upsert: tuple[str, ...], layout: Layout) -> dict[Place, str]:
    """Return the records of those rows of a transform that the table cannot hold, each with the reason.

    Raises `SerializationError` for such a row that does not show which record it is of.
    """
    masks = (*_not_text(rows), *_keyless(rows, upsert), *_beyond_limits(rows, layout)) if rows.num_rows else ()
    if not masks:
        return {}
    reasons = _reasons(rows, masks)
    if {"_partition", "_offset"} <= {*rows.schema.names}:
        places = zip(_pairs(rows, "_partition", "_offset"), reasons, strict=True)
        unfit = {place: reason for place, reason in places if reason is not None}
        if all(None not in place for place in unfit):
            return unfit
    raise SerializationError(
        f"A row cannot be landed: {next(reason for reason in reasons if reason is not None)}. It does not show which "
        f"record it is of, so none can go to the quarantine, and nothing of this batch was landed. Keep _partition and "
        f"_offset in transform=, or give the row another value."
    )


def _reasons(rows: pa.RecordBatch, masks: Sequence[tuple[Any, str]]) -> Any:
    """Return the first reason against each row, or None."""
    import numpy as np

    reasons = np.full(rows.num_rows, None, object)
    for mask, reason in masks:
        reasons[mask & (reasons == None)] = reason  # noqa: E711 - element by element
    return reasons


def _not_text(rows: pa.RecordBatch) -> Iterator[tuple[Any, str]]:
    """Yield masks of rows with a text that is not UTF-8. Spark's cast of bytes to a string checks nothing."""
    import numpy as np
    import pyarrow as pa

    def is_valid(values: Any) -> bool:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not is_valid(column):
            mask = [not is_valid(pa.concat_arrays([column.slice(row, 1)])) for row in range(len(column))]
            yield np.array(mask), f"its {name!r} is a text that is not UTF-8"


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
