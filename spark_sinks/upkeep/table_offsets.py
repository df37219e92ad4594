"""The offsets in a table's rows and quarantine, as sets."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from eventbus.errors import CorruptRecord
from spark_sinks.targets.target import Target
from spark_sinks.upkeep.offsets import OffsetSet

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_TOPIC, _PARTITION, _OFFSET = "_topic", "_partition", "_offset"


def readable(target: Target, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of a table. Raises `CorruptRecord` for an incomplete file."""
    import pyarrow as pa

    try:
        yield from batches
    except pa.ArrowException as error:
        raise CorruptRecord(
            f"{target.name} cannot be read ({str(error).splitlines()[0]}): restore it from a copy, or land into a new "
            f"table"
        ) from error


def own(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Return the rows of a batch that have the coordinates of this topic."""
    import pyarrow.compute as pc

    compute: Any = pc
    mine = compute.and_(batch.column(_PARTITION).is_valid(), batch.column(_OFFSET).is_valid())
    if _TOPIC in batch.schema.names:
        mine = compute.and_(mine, compute.fill_null(compute.equal(batch.column(_TOPIC), topic), False))
    return batch.filter(mine) if mine.false_count else batch


class PartitionOffsets:
    """The offsets of one partition in a table: as rows, in the quarantine, and more than once."""

    def __init__(self) -> None:
        self.rows = OffsetSet()
        self.rejected = OffsetSet()
        self.doubled = OffsetSet()

    def windows(self) -> set[int]:
        return {*self.rows.windows(), *self.rejected.windows(), *self.doubled.windows()}


class TableOffsets:
    """The coordinates read from a table. ``strangers`` counts rows of another topic, or without coordinates."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.held: defaultdict[int, PartitionOffsets] = defaultdict(PartitionOffsets)
        self.rows = 0
        self.strangers = 0

    def read_rows(self, target: Target, columns: set[str], progress: Callable[[int], None]) -> None:
        """Read all rows. Rows without coordinates are only counted."""
        wanted = [name for name in (_TOPIC, _PARTITION, _OFFSET) if name in columns]
        has_coordinates = {_PARTITION, _OFFSET} <= columns
        for batch in readable(target, target.read(wanted if has_coordinates else sorted(columns)[:1])):
            self.rows += batch.num_rows
            if has_coordinates:
                for partition, offsets in self._split(batch):
                    held = self.held[partition]
                    held.doubled.add(held.rows.add(offsets))
            progress(self.rows)

    def read_quarantine(self, target: Target) -> None:
        for batch in readable(target, target.read_quarantine()):
            for partition, offsets in self._split(batch):
                held = self.held[partition]
                held.doubled.add(held.rejected.add(offsets))

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the offsets of a batch by partition."""
        import pyarrow as pa

        count = batch.num_rows
        batch = own(batch, self._topic)
        self.strangers += count - batch.num_rows
        if not batch.num_rows:
            return
        numbers = [batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False) for name in (_PARTITION, _OFFSET)]
        partitions, offsets = numbers
        if (partitions == partitions[0]).all():
            yield int(partitions[0]), offsets
            return
        for partition in np.unique(partitions).tolist():
            yield partition, offsets[partitions == partition]
