"""Limits of a message, checked before any value is built.

A few bytes can describe twenty million nulls, or nest deeper than the interpreter's stack. Three limits apply to each
message: the depth of recursive records, the number of items, and the ratio of the decoded size to the encoded size. The
writer charges as the reader does: a message that is written and cannot be read would stop its partition.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from serdes.avro.codec.errors import AvroDataError
from serdes.avro.limits import inner
from serdes.avro.schema import Array, Fixed, Map, Record, Schema, Union

MAX_NESTING: Final = 100
"""The maximum depth of recursive records."""
MAX_ITEMS: Final = 1_000_000
"""The maximum number of items in all arrays and maps."""
_ZERO_WIDTH_COST: Final = 100
"""Items that take no bytes at all count for so many: at most 10,000 of them."""
_CELL = 8
"""The assumed size of a decoded value: a 64-bit slot."""
_RATIO = 16
_SPARE: Final = 1_000_000
"""Decoded bytes: at most sixteen times those of the message, and a million."""
_LEAST = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1, "enum": 1}


class Budget:
    """The remaining allowance of one message."""

    __slots__ = ("items", "spare")

    def __init__(self) -> None:
        self.items = MAX_ITEMS
        self.spare = _SPARE

    def charge(self, count: int, cost: int, excess: int, left: int) -> None:
        """A block of ``count`` items; ``left``: the bytes that are left, where items have some."""
        if count > left:
            raise AvroDataError(f"a block of {count} items, but {max(left, 0)} bytes are left")
        self.items -= count * cost
        if self.items < 0:
            what = "10,000 items without a byte each" if cost > 1 else f"{MAX_ITEMS:,} items"
            raise AvroDataError(f"a block of {count} items: a message has at most {what}")
        if excess:
            self.spare -= count * excess
            if self.spare < 0:
                raise AvroDataError(
                    f"a block of {count} items: decoded, the message would be more than {_RATIO} times its size"
                )


def block_charge(item: Schema, key_bytes: int, apart: Container[int]) -> tuple[int, int, int]:
    """Return the fewest bytes of an item with its key, and what `Budget.charge` takes for one: cost and excess."""
    least = least_bytes(item) + key_bytes
    return least, 1 if least else _ZERO_WIDTH_COST, max(excess(item, apart) - _RATIO * key_bytes, 0)


def record_charge(record: Schema, apart: Container[int]) -> str | None:
    """Return the code that charges for a record that is optional or has its own function, or None if it is free."""
    more = excess_inside(record, apart) if isinstance(record, Record) else 0
    return f"budget.charge(1, 0, {more}, 1)" if more > 0 else None


def needs_budget(schema: Schema, seen: set[int] | None = None) -> bool:
    """True if it holds an array or a map anywhere."""
    seen = set() if seen is None else seen
    if isinstance(schema, (Array, Map)):
        return True
    if id(schema) in seen:
        return False
    seen.add(id(schema))
    return any(needs_budget(one, seen) for one in inner(schema))


def too_deep() -> None:
    raise AvroDataError(f"records nest deeper than {MAX_NESTING}")


def least_bytes(schema: Schema, known: dict[int, int] | None = None) -> int:
    """The fewest bytes a value takes. ``known``: of records met before; a recursive one's own is none."""
    known = {} if known is None else known
    if isinstance(schema, Union):
        return 1 + min((least_bytes(one, known) for one in schema.branches), default=0)
    if isinstance(schema, Record):
        if id(schema) not in known:
            known[id(schema)] = 0
            known[id(schema)] = sum(least_bytes(field.schema, known) for field in schema.fields)
        return known[id(schema)]
    if isinstance(schema, Fixed):
        return schema.size
    return 1 if isinstance(schema, (Array, Map)) else _LEAST[schema.type]


def excess(schema: Schema, apart: Container[int]) -> int:
    """Return by how much a decoded value may exceed sixteen times its encoded bytes.

    Items of arrays and maps, records in unions, and the records in ``apart`` (by id), which have separate functions,
    are not included: they are charged when they are decoded.
    """
    if isinstance(schema, Union):
        return (
            max((_CELL if isinstance(one, Record) else excess(one, apart) for one in schema.branches), default=0)
            - _RATIO
        )
    if isinstance(schema, Record):
        return _CELL if id(schema) in apart else _CELL + excess_inside(schema, apart)
    return _CELL - _RATIO * least_bytes(schema)


def excess_inside(record: Record, apart: Container[int]) -> int:
    """Return the same of a record's fields together."""
    return sum(excess(field.schema, apart) for field in record.fields)
