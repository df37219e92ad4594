"""Rows that replace rows: a batch by its newest row of each key, merged into the table."""

# pyarrow and deltalake have little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spark_sinks.shape import KEY, TOMBSTONE
from spark_sinks.targets.rewrite import fitted, rows_of
from spark_sinks.targets.target import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable

_NEWER = "(s._partition <> t._partition or s._offset > t._offset)"


def batch_rows(files: Sequence[StagedFile], columns: pa.Schema) -> pa.Table:
    """Return all staged rows with the table's columns and `TOMBSTONE`, those that directories name among them."""
    import pyarrow as pa

    columns = columns.append(pa.field(TOMBSTONE, pa.bool_()))
    batches = [batch for staged in files for batch in rows_of(staged.path, staged.directory, columns)]
    return pa.Table.from_batches(batches, columns)


def merged(
    table: DeltaTable, properties: CommitProperties, source: pa.Table, keys: Sequence[str], **writer: Any
) -> None:
    """Merge `changes` into a table, in one commit. A row of the table that is newer stays."""
    matched = " and ".join(f"t.`{name}` = s.`{name}`" for name in keys)
    merge = table.merge(source, matched, source_alias="s", target_alias="t", commit_properties=properties, **writer)
    merge = merge.when_matched_delete(f"s.{TOMBSTONE} and {_NEWER}")
    merge = merge.when_matched_update_all(f"not s.{TOMBSTONE} and {_NEWER}", except_cols=[TOMBSTONE])
    merge.when_not_matched_insert_all(f"not s.{TOMBSTONE}", except_cols=[TOMBSTONE]).execute()


def changes(rows: pa.Table, keys: Sequence[str], having: Callable[[pa.Array], pa.Table]) -> pa.Table:
    """A batch reduced to one row per key: what is put into the table, and, marked by `TOMBSTONE`, what is taken out.

    A tombstone names rows by their record key. Where ``keys`` are other columns, ``having`` looks up the keys of the
    table's rows with one of these record keys (columns: ``keys`` and the record key).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    record_key = record_key_of(rows.schema)
    rows = rows.set_column(rows.schema.get_field_index(TOMBSTONE), TOMBSTONE, rows[TOMBSTONE].fill_null(False))
    if tuple(keys) == (record_key,):
        return _newest(rows, keys)
    winners = _newest(rows.filter(pc.invert(rows[TOMBSTONE])), keys)
    tombstones = _newest(rows.filter(rows[TOMBSTONE]), [record_key])
    if not tombstones.num_rows:
        return winners
    ends = tombstones.select([record_key, "_partition", "_offset"]).rename_columns([record_key, "_in", "_end"])
    # Lists cannot go through a join: so it only finds the numbers of the rows.
    ended = _numbered(winners.select(dict.fromkeys([record_key, "_partition", "_offset"]))).join(
        ends, record_key, join_type="inner"
    )
    ended = ended.filter(pc.and_(pc.equal(ended["_partition"], ended["_in"]), pc.less(ended["_offset"], ended["_end"])))
    marks = pc.is_in(_numbered(winners)["_row"], ended["_row"].combine_chunks())
    winners = winners.set_column(winners.schema.get_field_index(TOMBSTONE), TOMBSTONE, marks)
    found = having(tombstones[record_key].combine_chunks())
    gone = found.join(winners.select(keys), list(keys), join_type="left anti").join(ends, record_key, join_type="inner")
    gone = gone.rename_columns([{"_in": "_partition", "_end": "_offset"}.get(name, name) for name in gone.schema.names])
    gone = gone.append_column(TOMBSTONE, pa.repeat(True, gone.num_rows))
    gone = pa.Table.from_batches([fitted(batch, rows.schema) for batch in gone.to_batches()], rows.schema)
    return pa.concat_tables([winners, gone])


def record_key_of(columns: pa.Schema) -> str:
    """Return the column that holds the record's key: values without fields are in ``value``, next to ``key``."""
    return KEY if KEY in columns.names else "key"


def _newest(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the newest row of each key, by partition and offset."""
    rows = rows.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    last = _numbered(rows.select(list(keys))).group_by(list(keys)).aggregate([("_row", "max")])
    return rows.take(last["_row_max"])


def _numbered(rows: pa.Table) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    return rows.append_column("_row", pa.array(np.arange(rows.num_rows)))
