"""Tables of format 1: ``table.json`` with the table's identity, and entries that know offsets and files only."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spark_sinks.shape import DATE
from spark_sinks.targets.beside import META
from spark_sinks.targets.files import Files
from spark_sinks.targets.target import SinkState, pack_columns

_TABLE = f"{META}/table.json"


class File1(msgspec.Struct, frozen=True):
    path: str
    rows: int


class Entry1(msgspec.Struct, frozen=True):
    sequence: int
    offsets: dict[int, int]
    rows: int
    files: list[File1]


class Table1(msgspec.Struct, frozen=True):
    id: str
    topic: str
    partition_by: list[str]


def converted(files: Files, entries: Sequence[Entry1]) -> SinkState:
    """The account that entries of format 1 add up to. A first one without files says where the table starts."""
    table = msgspec.json.decode(files.read(_TABLE), type=Table1)
    first, last = entries[0], entries[-1]
    landed = [file for entry in entries for file in entry.files]
    return SinkState(
        id=table.id,
        topic=table.topic,
        partition_by=tuple(table.partition_by),
        started={} if first.files else dict(first.offsets),
        sequence=last.sequence + 1,
        offsets=dict(last.offsets),
        rows=sum(entry.rows for entry in entries),
        schema=_columns(files, landed[-1].path, table.partition_by) if landed else b"",
    )


def _columns(files: Files, path: str, partition_by: Sequence[str]) -> bytes:
    """The columns of a file and those that its directory names; what type the latter had is not known."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = pq.read_schema(pa.BufferReader(files.read(path)))
    for name in partition_by:
        columns = columns.append(pa.field(name, pa.date32() if name == DATE else pa.string()))
    return pack_columns(columns)
