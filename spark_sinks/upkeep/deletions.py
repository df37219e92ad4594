"""Find quarantined records whose keys newer tombstones have deleted.

A replay must not restore them, but the table no longer knows what it deleted.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from spark_sinks.targets.target import SinkState
from spark_sinks.upkeep.topic_contents import TopicContents

if TYPE_CHECKING:
    import pyarrow as pa


class Deletions:
    """The last deletion of each waiting key by partition, read from the log as far as the table was landed."""

    def __init__(self, truth: Callable[[], TopicContents]) -> None:
        self._truth = truth
        self._last: dict[tuple[int, bytes], int] = {}
        self._places: dict[tuple[int, int], bytes] = {}
        """The keys of the waiting records, as in the log."""

    def look(self, state: SinkState, waiting: Iterable[pa.RecordBatch]) -> None:
        """Read the log after the first waiting record of each partition. ``waiting`` has the source's columns."""
        self._last.clear()
        self._places.clear()
        for batch in waiting:
            columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "key"))
            self._places.update({(p, o): key for p, o, key in zip(*columns, strict=True) if key is not None})
        keys = {(partition, key) for (partition, _), key in self._places.items()}
        if not keys:
            return
        truth = self._truth()
        for partition in sorted({partition for partition, _ in keys}):
            first = min(offset for each, offset in self._places if each == partition)
            for batch in truth.records(partition, first, state.offsets.get(partition, 0)):
                gone = batch.filter(batch.column("value").is_null())
                columns = (gone.column(name).to_pylist() for name in ("key", "offset"))
                for key, offset in zip(*columns, strict=True):
                    if (partition, key) in keys:
                        self._last[partition, key] = offset

    def left_out(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose records were not deleted."""
        import pyarrow as pa

        if not self._last:
            return rows
        places = list(zip(*(rows.column(name).to_pylist() for name in ("_partition", "_offset")), strict=True))
        keep = [self._last.get((p, self._places.get((p, o), b"")), -1) <= o for p, o in places]
        return rows.filter(pa.array(keep, pa.bool_()))
