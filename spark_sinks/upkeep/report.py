"""The result of checking a table, as data and as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from spark_sinks.upkeep.offsets import Ranges

Kind = Literal["records", "upserted", "transformed"]

EXPLAINED = {
    "markers": "ends of transactions",
    "aborted": "records of aborted transactions",
    "compacted": "compacted away",
    "unseen": "no records: the cluster does not say whether markers, aborted or compacted away",
    "gone": "in neither the table nor the log: retention took them before they landed, or they never were records",
    "unchecked": "in the table, but not in the log any more: only that they are there once could be checked",
    "superseded": "superseded by a newer record of their key, or a deletion",
    "deleted": "deleted by a record without a value, or that record itself",
    "either": "newest of their key in their partition, but the key is in several partitions",
    "dropped": "not in the table: dropped by the transform, or lost; the log does not show which",
    "several": "in the table more than once: the transform makes several rows of a record, or they doubled",
}
"""Why an offset is absent, or is not checked for occurring once."""


class PartitionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one partition, from offset ``start`` to before ``end`` (the table's next offset).

    ``records``: records of the log that should be in the table or the quarantine. ``rows`` and ``rejected``: offsets
    found in the table and in the quarantine. ``explained``: counts by the keys of `EXPLAINED`. ``missing``: committed
    but absent. ``doubled``: more than once, or in both. ``foreign``: in the table without a committed record (or not
    the newest of its key). ``differing``: values differ from the log.
    """

    partition: int
    start: int
    end: int
    log_start: int
    log_end: int
    records: int = 0
    rows: int = 0
    rejected: int = 0
    missing: Ranges = Ranges()
    doubled: Ranges = Ranges()
    foreign: Ranges = Ranges()
    differing: Ranges = Ranges()
    explained: dict[str, int] = {}


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a whole table. If ``problems`` is empty, every record is there once.

    ``checked`` states what was compared, and ``remarks`` what could not be.
    """

    topic: str
    table: str
    log: str
    kind: Kind
    sequence: int
    records: int
    rows: int
    rejected: int
    partitions: list[PartitionReport]
    checked: list[str]
    problems: list[str]
    remarks: list[str]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def explained(self) -> dict[str, int]:
        """Counts by the keys of `EXPLAINED` over all partitions."""
        found: dict[str, int] = {}
        for each in self.partitions:
            for word, count in each.explained.items():
                found[word] = found.get(word, 0) + count
        return found


class VerifyProgress(msgspec.Struct, frozen=True):
    """The progress of a check in offsets. Reading the table's rows comes first and counts as one step."""

    doing: str
    done: int
    total: int


def problems_of(topic: str, partition: PartitionReport) -> Iterator[str]:
    """Yield a sentence for each problem of a partition."""
    where = f"{topic}-{partition.partition}"
    if partition.end > partition.log_end:
        yield (
            f"{where}: the table goes to offset {partition.end:,}, and the log ends at {partition.log_end:,}: this is "
            f"another log, or the topic was created again"
        )
    for ranges, told in (
        (partition.missing, "missing: committed in the log, and in neither the table nor the quarantine"),
        (partition.doubled, "doubled: in the table more than once, or in the quarantine too"),
        (partition.foreign, "foreign: in the table, though the log has no record for it"),
        (partition.differing, "different: values in the table are not those in the log"),
    ):
        if ranges:
            yield f"{where}: {ranges.count:,} {told}: {ranges.head(8)}"
