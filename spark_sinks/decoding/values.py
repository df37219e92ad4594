"""The seam between records and rows: the driver knows what values are (`Values`), tasks decode them (`RowDecoder`)."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa

    from serdes.registry import SchemaClient

ValueKind = Literal["auto", "avro", "json", "text", "bytes"]
KeyKind = Literal["bytes", "text"]
Change = Literal["fail", "quarantine", "new_column"]
Lack = Literal["time", "nanos", "narrow"]
"""Types that not every table has: the time of a day, timestamps of nanoseconds, and numbers that may become wider."""
SPARK_LACKS: frozenset[Lack] = frozenset({"time", "nanos"})


class ValueSettings(NamedTuple):
    """The options of a landing about its values.

    - ``value``: ``auto`` is ``avro`` with a registry, ``json`` with a schema, and ``bytes`` with neither.
    - ``schema``: the columns of JSON values: a `msgspec.Struct` type, a pyarrow schema or Spark's DDL.
    - ``registry``: a URL, a client, or None.
    - ``key``: what ``_key`` is; a key that is not UTF-8 is refused with ``text``.
    - ``on_incompatible``: what becomes of values whose schema no common column can hold.
    - ``tombstones``: whether rows have the column `shape.TOMBSTONE` (tables that are upserted).
    - ``lacks``: what the way to the table has no type for: times become microseconds since midnight (int64),
      nanoseconds are cut to microseconds, int and float become long and double.
    """

    topic: str
    value: ValueKind = "auto"
    schema: type[msgspec.Struct] | Any | str | None = None
    registry: str | SchemaClient | None = None
    key: KeyKind = "bytes"
    on_incompatible: Change = "fail"
    tombstones: bool = False
    lacks: frozenset[Lack] = frozenset()


class Decoded(NamedTuple):
    """A batch of the source, taken apart: every record is in exactly one of the three.

    ``rows`` has `RowPlan.columns`; ``rejected`` has `shape.quarantine_schema`, None when nothing was refused;
    ``unknown`` are the ids of schemas that the plan does not know, whose records are left out: the driver learns them
    and has the batch decoded again.
    """

    rows: pa.RecordBatch
    rejected: pa.RecordBatch | None = None
    unknown: frozenset[int] = frozenset()


class RowDecoder(Protocol):
    """Decodes in one task."""

    def rows(self, batch: pa.RecordBatch) -> Decoded:
        """Take apart a batch with the columns `shape.SOURCE_COLUMNS`; offsets of a partition ascend in it.

        Never raises for what a record holds: that is in ``rejected``.
        """
        ...


class RowPlan(Protocol):
    """The plan for the tasks of one batch; picklable, and small."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of a decoded row in order: fields of the value, ``_key`` (not for ``bytes`` and ``text``, whose
        columns are ``key`` and ``value``), `shape.COORDINATES`, and `shape.TOMBSTONE` where asked for."""
        ...

    def decoder(self) -> RowDecoder: ...


class Values(Protocol):
    """The values of a topic during a landing. Used by the driver, from one thread."""

    def plan(self, table: pa.Schema | None) -> RowPlan:
        """The plan for the next batch, after its end is fixed: so all its schemas are registered by now.

        ``table``: the columns that the table has (None: not made yet). The plan's columns hold at least these, none
        narrower. Raises `SerializationError` for a change that is not allowed, `SchemaUnavailable` when the registry
        does not answer.
        """
        ...

    def learn(self, ids: AbstractSet[int]) -> None:
        """Find out about schemas that tasks met. One that the registry does not know is refused from the next plan on.

        Raises `SchemaUnavailable` when the registry does not answer.
        """
        ...

    def close(self) -> None: ...
