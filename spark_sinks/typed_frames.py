"""Typed rows for custom jobs: the columns that a landing makes of records, in any batch or stream."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from eventbus.errors import ConfigError, SerializationError
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.values import SPARK_LACKS, KeyKind, RowPlan, ValueKind, ValueSettings
from spark_sinks.shape import SOURCE_COLUMNS

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from serdes.registry import SchemaClient

OnError = Literal["fail", "drop"]
ArrowSchema = Any
"""A `pyarrow.Schema`, whose type is unknown to type checkers."""


def typed(
    frame: DataFrame,
    url: str,
    topic: str,
    *,
    value: ValueKind = "auto",
    schema: type[msgspec.Struct] | ArrowSchema | str | None = None,
    registry: str | SchemaClient | None = None,
    key: KeyKind = "bytes",
    columns: Sequence[str] | None = None,
    on_error: OnError = "fail",
) -> DataFrame:
    """Return the rows of a topic's records, with the columns that `land` makes of them.

    - ``frame``: a batch or a stream of this topic with Kafka's columns, from ``format("eventbus")`` or ``"kafka"``.
    - ``url``: the log, which may contain the registry. ``value``, ``schema``, ``registry``, ``key``: as for `land`.
    - ``columns``: only these. The tasks that decode drop the others, earlier than a ``select`` would.
    - ``on_error``: how a record that does not fit is treated. ``fail`` ends the query with `SerializationError`;
      ``drop`` leaves it out. (A landing keeps such records in its quarantine.)

    The columns are those of the schemas registered now. A query that meets a later schema ends with
    `SerializationError`; start it again, and a stream continues from its checkpoint. Raises `ConfigError` for wrong
    arguments, `SchemaUnavailable` if the registry does not answer.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error={on_error!r}: choose 'fail' or 'drop'")
    settings = ValueSettings(topic, value, schema, registry, key, lacks=SPARK_LACKS)
    with contextlib.closing(open_values(settings, url=url)) as values:
        plan = values.plan(None)
    known = plan.columns.names
    names = known if columns is None else list(columns)
    if missing := [name for name in names if name not in known]:
        raise ConfigError(f"columns: {topic} has no column {missing[0]!r}; it has {', '.join(known)}")
    task = TypedTask(plan, topic, names, drops=on_error == "drop")
    return frame.select(*SOURCE_COLUMNS).mapInArrow(task, from_arrow_schema(task.columns))


class TypedTask:
    """Decodes in Spark's tasks. It is pickled and sent to them."""

    def __init__(self, plan: RowPlan, topic: str, names: Sequence[str], *, drops: bool) -> None:
        self._plan = plan
        self._topic = topic
        self._names = list(names)
        self._drops = drops

    @property
    def columns(self) -> pa.Schema:
        """The columns of the rows it yields."""
        import pyarrow as pa

        return pa.schema([self._plan.columns.field(name) for name in self._names])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = self._plan.decoder()
        for batch in batches:
            rows, rejected, unknown = decoder.rows(batch)
            if unknown:
                raise SerializationError(
                    f"{self._topic}: schema {min(unknown)} came after this query had begun, which has the columns of "
                    f"the schemas before it: start it again, a stream continues from its checkpoint"
                )
            if rejected is not None and rejected.num_rows and not self._drops:
                first = rejected.slice(0, 1).to_pylist()[0]
                where = f"{self._topic}-{first['_partition']} at offset {first['_offset']}"
                raise SerializationError(
                    f"{where} is no row: {first['error']}. on_error='drop' leaves such records out, and land() keeps "
                    f"them in the quarantine; {rejected.num_rows:,} of these {batch.num_rows:,}"
                )
            yield rows.select(self._names)
