"""Convert records to rows outside of Spark, as the tasks of a landing do, for replays and comparisons."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.errors import ConfigError, SerializationError
from spark_sinks.decoding.values import Change, Decoded, KeyKind, ValueKind, ValueSettings
from spark_sinks.names import IN_FILES, NameRule, fields_of
from spark_sinks.shape import Lack
from spark_sinks.stage import Layout
from spark_sinks.targets.target import SinkState
from spark_sinks.tasks import Decoding

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa

    from serdes.registry import SchemaClient

_MAX_ROUNDS = 20


class ValueArguments(NamedTuple):
    """The arguments of a landing about its values, see `spark_sinks.landing.land`."""

    value: ValueKind = "auto"
    schema: type[msgspec.Struct] | Any | str | None = None
    registry: str | SchemaClient | None = None
    key: KeyKind = "bytes"
    on_incompatible: Change = "fail"


class RowMaker:
    """Decodes batches of records to rows of a table, and learns schemas on the way.

    JSON values without a ``schema`` are decoded to the table's own columns. ``session`` starts Spark, which is needed
    to parse a schema in its language.
    """

    def __init__(
        self,
        url: str,
        state: SinkState,
        arguments: ValueArguments,
        session: Callable[[], object] | None = None,
        layout: Layout | None = None,
        names: NameRule = IN_FILES,
        lacks: frozenset[Lack] = frozenset(),
    ) -> None:
        from spark_sinks.decoding.choose import open_values
        from spark_sinks.decoding.raw import RawValues

        if state.transformed:
            raise ConfigError(
                f"the table of {state.topic} was landed with a transform, which only Spark can do again: land the "
                f"topic into a new table"
            )
        columns = state.value_columns()
        if isinstance(arguments.schema, str) and session is not None:
            session()
        settings = ValueSettings(state.topic, *arguments, tombstones=bool(state.upsert), lacks=lacks, names=names)
        is_decoded = columns is not None and not {"key", "value"} >= set(columns.names)
        if is_decoded and settings.schema is None and settings.value == "json":
            settings = settings._replace(schema=fields_of(columns))
        self._values = open_values(settings, url=url)
        if is_decoded and settings.value == "auto" and isinstance(self._values, RawValues):
            self._values = open_values(settings._replace(schema=fields_of(columns)), url=url)
        self._state = state
        self._layout = layout
        self._plan = self._values.plan(columns)

    @property
    def columns(self) -> pa.Schema:
        """The columns of rows at present. A batch may widen them."""
        return self._plan.columns

    def follow(self, state: SinkState) -> None:
        """Adopt a newer state of the table, whose columns may have become wider."""
        self._state = state
        self._plan = self._values.plan(state.value_columns())

    def __call__(self, batch: pa.RecordBatch) -> Decoded:
        """Decode a batch with `shape.SOURCE_COLUMNS`, ascending."""
        for _ in range(_MAX_ROUNDS):
            decoded = Decoding(self._plan, {}, self._state.upsert, self._layout)(batch)
            if not decoded.unknown:
                return decoded
            self._values.learn(decoded.unknown)
            self._plan = self._values.plan(self._state.value_columns())
        raise SerializationError(f"{self._state.topic}: after {_MAX_ROUNDS} rounds there are still unknown schemas")

    def close(self) -> None:
        self._values.close()
