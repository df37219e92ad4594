"""Leave out refused records whose keys were deleted later: a replay would restore the deleted keys."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from spark_sinks.shape import KEY, TOMBSTONE
from spark_sinks.targets.storage import parquet_file
from spark_sinks.targets.target import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

Ends = dict[tuple[bytes | None, int], int]


def ends_of(files: Sequence[StagedFile]) -> Ends:
    """Return the offset of the last tombstone of each key in each partition."""
    import pyarrow as pa

    ends: Ends = {}
    for staged in files:
        with parquet_file(staged.path) as file:
            names = file.schema_arrow.names
            if TOMBSTONE not in names:
                continue
            key = KEY if KEY in names else "key"
            rows = file.read([key, "_partition", "_offset", TOMBSTONE])
        rows = rows.filter(rows[TOMBSTONE].fill_null(False))
        keys = rows[key].cast(pa.binary()).to_pylist()
        places = zip(keys, rows["_partition"].to_pylist(), rows["_offset"].to_pylist(), strict=True)
        for record_key, partition, offset in places:
            ends[record_key, partition] = max(offset, ends.get((record_key, partition), -1))
    return ends


def without_deleted(waiting: Iterable[pa.RecordBatch], ends: Ends) -> tuple[list[pa.RecordBatch], bool]:
    """Return the refused records whose keys were not deleted later, and True if any record was left out."""
    import pyarrow as pa

    kept: list[pa.RecordBatch] = []
    settled = False
    for batch in waiting:
        places = zip(*(batch.column(name).to_pylist() for name in ("key", "_partition", "_offset")), strict=True)
        waits = [offset >= ends.get((key, partition), -1) for key, partition, offset in places]
        settled = settled or not all(waits)
        kept.append(batch if all(waits) else batch.filter(pa.array(waits, pa.bool_())))
    return [batch for batch in kept if batch.num_rows], settled
