"""Convert decoded records to rows of the table: the caller's transform and the partition columns."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eventbus.errors import ConfigError
from spark_sinks.decoding.unite import united
from spark_sinks.shape import COORDINATES, DATE, KEY, TOMBSTONE
from spark_sinks.stage import Layout
from spark_sinks.targets.target import Target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Frames:
    """Converts decoded rows to rows of the table. ``partition_by`` may map names to Spark SQL expressions."""

    def __init__(
        self,
        transform: Callable[[DataFrame], DataFrame] | None,
        partition_by: str | Sequence[str] | Mapping[str, str],
        event_time: str | None,
        compression: str,
    ) -> None:
        self._transform = transform
        self._expressions = dict(partition_by) if isinstance(partition_by, Mapping) else {}
        names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        if taken := [name for name in names if name in COORDINATES]:
            raise ConfigError(f"partition_by={taken[0]!r}: this column stays in the files; partition by another")
        self.layout = Layout(names, event_time or "_timestamp", compression)
        self.event_time = event_time

    def of(self, target: Target, upsert: tuple[str, ...]) -> Frames:
        """Return these frames for one target. Raises `ConfigError` for partitions that the target does not support."""
        frames = copy.copy(self) if target.is_partitioned else self._unpartitioned()
        limits = target.limits(upsert)
        frames.layout = frames.layout._replace(in_files=target.keeps_partition_columns, limits=limits)
        return frames

    def _unpartitioned(self) -> Frames:
        if self._expressions or (self.layout.partition_by and self.layout.partition_by != (DATE,)):
            names = list(self.layout.partition_by)
            raise ConfigError(f"partition_by={names}: this table is not made of directories; leave it out")
        if self.event_time is not None:
            raise ConfigError(f"event_time={self.event_time!r} is for tables that are split by day; leave it out")
        return Frames(self._transform, (), None, self.layout.compression)

    @property
    def are_direct(self) -> bool:
        """True if a task can decode and write in one step, because Spark does nothing in between."""
        return self._transform is None and not self._expressions

    @property
    def decoded_layout(self) -> Layout:
        """The layout of decoded records, without partitions if the rows of the table are made from them later."""
        return self.layout if self.are_direct else Layout()

    @property
    def are_transformed(self) -> bool:
        """True if a row need not correspond to one record."""
        return self._transform is not None

    def rows(self, frame: DataFrame, decode: Any, columns: pa.Schema) -> DataFrame:
        """Return the plan from a micro-batch of the source to the rows of the table."""
        from pyspark.sql.functions import expr
        from pyspark.sql.pandas.types import from_arrow_schema

        frame = frame.mapInArrow(decode, from_arrow_schema(columns))
        if self._transform is not None:
            frame = self._transform(frame)
            if not hasattr(frame, "mapInArrow"):
                raise ConfigError(f"transform= returned {frame!r}: it must return a DataFrame")
        for name, expression in self._expressions.items():
            frame = frame.withColumn(name, expr(expression))
        return frame

    def check_upsert(self, columns: Sequence[str], decoded: Sequence[str]) -> None:
        """Raise `ConfigError` if a transform dropped the columns that show which row is newer or deleted."""
        needed = (TOMBSTONE, KEY if KEY in decoded else "key", "_partition", "_offset")
        if lacking := [name for name in needed if name not in columns]:
            raise ConfigError(
                f"transform= leaves out {lacking[0]}: upsert= needs {', '.join(needed)} in what it returns, to know "
                f"which row is newer, and which one is deleted"
            )

    @classmethod
    def fitted(cls, frame: DataFrame, table: pa.Schema | None) -> DataFrame:
        """Cast a transform's rows to the types of the table's columns, or to wider types.

        Raises `ConfigError` for a column whose type changed incompatibly, or is null.
        """
        import pyarrow as pa
        from pyspark.sql.functions import col
        from pyspark.sql.pandas.types import from_arrow_type

        for field in cls.columns(frame):
            if pa.types.is_null(field.type):
                raise ConfigError(
                    f"column {field.name!r} of transform= has no type: cast it, as in CAST(NULL AS string)"
                )
            if table is None or field.name not in table.names:
                continue
            kind = table.field(field.name).type
            both = united(kind, field.type)
            if both is None:
                raise ConfigError(
                    f"column {field.name!r} of transform= is {field.type} now, and the table has {kind}: cast it, give "
                    f"it another name, or land into a new table"
                )
            if both != field.type and not pa.types.is_nested(both):
                frame = frame.withColumn(field.name, col(quoted(field.name)).cast(from_arrow_type(both)))
        return frame

    @staticmethod
    def columns(frame: DataFrame) -> pa.Schema:
        """Return the columns of a frame as an Arrow schema.

        All of them may be null, also what Spark knows never is, as ``1 AS n``: the rows that are landed already lack a
        column that comes later, and Iceberg adds no required one.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(frame.schema.toNullable(), timezone="UTC")

    def check_early(self, columns: Sequence[str], upsert: Sequence[str]) -> None:
        """Run `check` before Spark is started, unless Spark computes columns."""
        if self.are_direct:
            self.check(columns, upsert)

    def check_time(self, columns: pa.Schema) -> None:
        """Raise `ConfigError` if the column of the day is not a date (`check` finds a missing column)."""
        import pyarrow as pa

        name = self.event_time
        if name is None or name not in columns.names:
            return
        kind = columns.field(name).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise ConfigError(
                f"event_time={name!r}: this column is {kind}, and no time to make a day of: name a column of "
                f"timestamps or dates, or make one of it with transform="
            )

    def check(self, columns: Sequence[str], upsert: Sequence[str] = ()) -> None:
        """Raise `ConfigError` unless rows have the columns that the table is partitioned and upserted by."""
        listed = ", ".join(columns)
        if self.event_time is not None and self.event_time not in columns:
            raise ConfigError(f"event_time={self.event_time!r}: there is no such column; there are {listed}")
        if lacking := [name for name in upsert if name not in columns]:
            raise ConfigError(f"upsert={lacking[0]!r}: there is no such column; there are {listed}")
        if missing := self.layout.missing(columns):
            raise ConfigError(f"partition_by={missing[0]!r}: there is no such column; there are {listed}")
        if set(columns) <= set(self.layout.partition_by):
            raise ConfigError(f"partition_by={list(self.layout.partition_by)} leaves no column for the files")
        if DATE in columns and self.event_time is not None:
            raise ConfigError(f"event_time={self.event_time!r} makes a column {DATE!r}, and there is one already")


def quoted(name: str) -> str:
    """Return the name of a column in Spark's language."""
    return f"`{name.replace('`', '``')}`"
