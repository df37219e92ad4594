"""Protocols between the driver, which knows a topic's values (`Values`), and decoding tasks (`RowDecoder`)."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from spark_sinks.names import IN_FILES, NameRule
from spark_sinks.shape import Lack

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa

    from serdes.registry import SchemaClient

ValueKind = Literal["auto", "avro", "json", "text", "bytes"]
KeyKind = Literal["bytes", "text"]
Change = Literal["fail", "quarantine", "new_column"]
SPARK_LACKS: frozenset[Lack] = frozenset({"time", "nanos"})


class ValueSettings(NamedTuple):
    """The options of a landing for its values.

    - ``value``: ``auto`` means ``avro`` with a registry, ``json`` with a schema, and ``bytes`` with neither.
    - ``schema``: the columns of JSON values, as a `msgspec.Struct` type, a pyarrow schema or Spark's DDL.
    - ``registry``: a URL, a client, or None.
    - ``key``: the type of ``_key``; with ``text``, a key that is not UTF-8 is refused.
    - ``on_incompatible``: how values are treated whose schema does not fit in common columns.
    - ``tombstones``: adds the column `shape.TOMBSTONE` (for tables that are upserted).
    - ``lacks``: types that the table lacks: times become microseconds since midnight (int64), nanoseconds are cut to
      microseconds, int and float become long and double.
    - ``names``: the names that columns may have.
    """

    topic: str
    value: ValueKind = "auto"
    schema: type[msgspec.Struct] | Any | str | None = None
    registry: str | SchemaClient | None = None
    key: KeyKind = "bytes"
    on_incompatible: Change = "fail"
    tombstones: bool = False
    lacks: frozenset[Lack] = frozenset()
    names: NameRule = IN_FILES


class Decoded(NamedTuple):
    """A decoded batch of the source. Every record is in exactly one of the three parts.

    ``rows`` has `RowPlan.columns`. ``rejected`` has `shape.quarantine_schema`, or is None if no record was refused.
    ``unknown`` are ids of schemas that the plan does not contain; their records are left out until the driver has
    learned the schemas and the batch is decoded again.
    """

    rows: pa.RecordBatch
    rejected: pa.RecordBatch | None = None
    unknown: frozenset[int] = frozenset()


class RowDecoder(Protocol):
    """Decodes batches in a task."""

    def rows(self, batch: pa.RecordBatch) -> Decoded:
        """Decode a batch with the columns `shape.SOURCE_COLUMNS`, in which the offsets of a partition ascend.

        Never raises because of a record's contents; such records are in ``rejected``.
        """
        ...


class RowPlan(Protocol):
    """How the tasks of one batch decode; picklable and small."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of a decoded row in order.

        These are the fields of the value, ``_key`` (except for ``bytes`` and ``text``, whose columns are ``key`` and
        ``value``), `shape.COORDINATES`, and `shape.TOMBSTONE` if requested.
        """
        ...

    def decoder(self) -> RowDecoder: ...


class Values(Protocol):
    """The values of a topic during a landing. Used by the driver, in one thread."""

    def plan(self, table: pa.Schema | None) -> RowPlan:
        """Return the plan for the next batch. The batch's end is known, so all of its schemas are registered by now.

        ``table`` are the columns of the table, or None if it does not exist yet. The plan has at least these columns,
        none narrower. Raises `SerializationError` for a change that is not allowed, `SchemaUnavailable` if the registry
        does not answer.
        """
        ...

    def learn(self, ids: AbstractSet[int]) -> None:
        """Fetch schemas that tasks have met. The next plan refuses records of a schema that the registry lacks.

        Raises `SchemaUnavailable` if the registry does not answer.
        """
        ...

    def close(self) -> None: ...
