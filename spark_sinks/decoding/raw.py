"""Values that are not decoded: bytes or text."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.decoding.framing import Frame, Refusals, as_text, as_type, put_together
from spark_sinks.decoding.unite import united
from spark_sinks.decoding.values import Decoded, KeyKind, RowDecoder, RowPlan, Values

if TYPE_CHECKING:
    import pyarrow as pa


class RawPlan(NamedTuple):
    """Columns ``key`` and ``value``, each as bytes or text. It is also its own decoder."""

    key: KeyKind
    value: KeyKind
    tombstones: bool

    @property
    def columns(self) -> pa.Schema:
        import pyarrow as pa

        kinds = {"bytes": pa.binary(), "text": pa.string()}
        return self._frame.columns([pa.field("key", kinds[self.key]), pa.field("value", kinds[self.value])])

    @property
    def _frame(self) -> Frame:
        return Frame(self.key, self.tombstones, raw=True)

    def decoder(self) -> RowDecoder:
        return self

    def rows(self, batch: pa.RecordBatch) -> Decoded:
        import pyarrow as pa

        refused = Refusals()
        key = self._frame.keys(batch, refused)
        value = batch.column("value")
        value = as_text(value, refused, "the value") if self.value == "text" else as_type(value, pa.binary())
        kept = refused.kept(batch.num_rows)
        payload = [key, value] if kept is None else [array.take(pa.array(kept)) for array in (key, value)]
        return put_together(batch, self.columns, payload, None, refused)


class RawValues:
    """Bytes and text. ``decoded`` returns typed values if the topic gets a schema before its first rows."""

    def __init__(self, plan: RawPlan, decoded: Callable[[], Values | None] = lambda: None) -> None:
        self._plan = plan
        self._find_decoded = decoded
        self._decoded: Values | None = None

    def plan(self, table: pa.Schema | None) -> RowPlan:
        if table is None and self._decoded is None:
            self._decoded = self._find_decoded()
        if self._decoded is not None:
            return self._decoded.plan(table)
        columns = self._plan.columns
        for field in Frame(self._plan.key, self._plan.tombstones, raw=True).payload(table, ()):
            own = columns.field(field.name).type if field.name in columns.names else field.type
            if united(own, field.type) is None or united(field.type, own) is None:
                raise ConfigError(
                    f"the table's column {field.name} is {field.type}: go on with what it was made with (value=, "
                    "key=), or land into another table"
                )
        return self._plan

    def learn(self, ids: AbstractSet[int]) -> None:
        """Learn schemas only if the values have a schema by now. Raw values name none."""
        if self._decoded is not None:
            self._decoded.learn(ids)

    def close(self) -> None:
        if self._decoded is not None:
            self._decoded.close()
