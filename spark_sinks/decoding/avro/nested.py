"""Nested values: records, unions, arrays and maps."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from spark_sinks.decoding.avro import build
from spark_sinks.decoding.avro.cursor import ENDS_EARLY, NEGATIVE, Cursor, Mask
from spark_sinks.decoding.avro.nodes import BadValue, Node, Reading, one_raw, one_small, raw, small
from spark_sinks.names import distinct

_FEW = 48
"""Up to this number of records left in an array or map are read separately, which is faster."""
_PATIENCE = 8
_MOST_EMPTY_ITEMS = 10_000
"""The limit of consumers."""
_TOO_MANY = f"more than {_MOST_EMPTY_ITEMS:,} items that take no bytes"
_OUT_OF_RANGE = "the block's count is out of range"
_LEAST = -(1 << 63)


class Record(Node):
    """A record as a struct. Its fields are set later, because a record may contain itself."""

    def __init__(self, path: str) -> None:
        super().__init__(pa.string(), path)
        self.children: list[tuple[str, Node]] = []

    def complete(self, children: list[tuple[str, Node]]) -> None:
        self.children = children
        self.shown = [(name, child) for name, child in children if not child.is_empty]
        self.is_empty = not self.shown
        self.fields = [pa.field(name, child.type) for name, child in self.shown]
        self.type = pa.struct(self.fields) if self.shown else pa.string()
        self.in_step = all(child.in_step for _, child in children)
        self.nodes = 1 + sum(child.nodes for _, child in children)

    def columns(self, cursor: Cursor, present: Mask) -> list[pa.Array]:
        """Return a column for each field in `shown`."""
        found: list[pa.Array] = []
        for _, child in self.children:
            column = child.read(cursor, cursor.still(present))
            if not child.is_empty:
                found.append(column)
        return found

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        columns = self.columns(cursor, present)
        if self.is_empty:
            return pa.nulls(len(cursor), self.type)
        return build.structs(self.fields, columns, len(cursor), present)

    def one(self, reading: Reading) -> Any:
        found = {name: child.one(reading) for name, child in self.children}
        if reading.plain:
            return found
        if self.is_empty:
            return None
        return {name: found[name] for name, _ in self.shown}


class Marker(Node):
    """A record without fields in a union, an array or a map, where it may be absent: only its presence is a value.

    It is a struct, so that its column remains valid if a later version of the record has fields.
    """

    _FIELD = pa.field("present", pa.bool_())

    def __init__(self, record: Record) -> None:
        super().__init__(pa.struct([self._FIELD]), record.path)
        self._record = record
        self.in_step = record.in_step
        self.nodes = record.nodes

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        self._record.read(cursor, present)
        column = build.booleans(np.ones(len(cursor), bool), None)
        return build.structs([self._FIELD], [column], len(cursor), present)

    def one(self, reading: Reading) -> Any:
        found = self._record.one(reading)
        return found if reading.plain else {self._FIELD.name: True}


class Recursive(Node):
    """A record inside itself, which a column cannot represent, as JSON."""

    in_step = False

    def __init__(self, path: str, record: Record) -> None:
        super().__init__(pa.string(), path)
        self._record = record

    def one(self, reading: Reading) -> Any:
        was, reading.plain = reading.plain, True
        found = self._record.one(reading)
        reading.plain = was
        return found if was else msgspec.json.encode(found).decode()


class Optional(Node):
    """A union of null and one type: a column of that type."""

    def __init__(self, path: str, inner: Node, index: int, count: int) -> None:
        super().__init__(inner.type, path)
        self._inner = inner
        self._index = index
        self._count = count
        self.is_empty = inner.is_empty
        self.in_step = inner.in_step
        self.nodes = 1 + inner.nodes

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        index = small(cursor, self._count, present, self.path)
        wrong = index >= self._count
        if wrong.any():
            cursor.fail(wrong, present, self.path, _no_branch(self._count))
        is_there = index == self._index
        if present is not None:
            is_there = is_there & present
        elif is_there.all():
            return self._inner.read(cursor, None)
        return self._inner.read(cursor, is_there)

    def one(self, reading: Reading) -> Any:
        index = one_small(reading, self._count, self.path)
        if index >= self._count:
            raise BadValue(self.path, _no_branch(self._count))
        return self._inner.one(reading) if index == self._index else None


class Choice(Node):
    """Any other union: a struct with a member for each branch but null, which is None here.

    A member has the name of its branch, so that it stays the same when a later version adds or reorders branches.
    """

    def __init__(self, path: str, branches: list[Node | None], names: list[str]) -> None:
        self._branches = branches
        members = [each for each in branches if each is not None]
        self._fields = [pa.field(name, each.type) for name, each in zip(distinct(names), members, strict=True)]
        super().__init__(pa.struct(self._fields), path)
        self.in_step = all(each.in_step for each in members)
        self.nodes = 1 + sum(each.nodes for each in members)

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        count = len(self._branches)
        index = small(cursor, count, present, self.path)
        wrong = index >= count
        if wrong.any():
            cursor.fail(wrong, present, self.path, _no_branch(count))
        is_there = np.zeros(len(cursor), bool)
        columns: list[pa.Array] = []
        for number, branch in enumerate(self._branches):
            if branch is None:
                continue
            mine = index == number
            if present is not None:
                mine = mine & present
            is_there |= mine
            columns.append(branch.read(cursor, cursor.still(mine)))
        return build.structs(self._fields, columns, len(cursor), is_there)

    def one(self, reading: Reading) -> Any:
        count = len(self._branches)
        index = one_small(reading, count, self.path)
        if index >= count:
            raise BadValue(self.path, _no_branch(count))
        branch = self._branches[index]
        if branch is None:
            return None
        value = branch.one(reading)
        if reading.plain:
            return value
        member = sum(each is not None for each in self._branches[:index])
        return {field.name: value if number == member else None for number, field in enumerate(self._fields)}


class Repeated(Node):
    """An array, or a map (``has_keys``). All records read their first item, then those with more read their second."""

    def __init__(self, path: str, item: Node, *, has_keys: bool, least_bytes: int) -> None:
        self._item = item
        self._has_keys = has_keys
        self._entry = [pa.field("key", pa.string(), nullable=False), pa.field("value", item.type)]
        super().__init__(
            pa.map_(pa.string(), item.type) if has_keys else pa.list_(pa.field("element", item.type)), path
        )
        self.in_step = item.in_step and (has_keys or least_bytes > 0)
        self.nodes = 4 + item.nodes

    # in step ---------------------------------------------------------------------------------------------------------

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        rows = np.arange(len(cursor)) if present is None else np.flatnonzero(present)
        part = cursor.part(rows)
        owners, chunks = self._items(part)
        cursor.rejoin(part, rows)
        owner = rows[np.concatenate(owners)] if owners else np.empty(0, np.int64)
        offsets = np.zeros(len(cursor) + 1, np.int32)
        np.cumsum(np.bincount(owner, minlength=len(cursor)), out=offsets[1:])
        kind = pa.struct(self._entry) if self._has_keys else self._item.type
        if chunks:
            items = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
            items = items.take(pa.array(np.argsort(owner, kind="stable")))
        else:
            items = pa.array([], kind)
        buffers = [build.validity(present), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self.type, len(cursor), buffers, children=[items])

    def _items(self, part: Cursor) -> tuple[list[Any], list[pa.Array]]:
        """Return the records that read an item in each round, and the items."""
        owners: list[Any] = []
        chunks: list[pa.Array] = []
        left = np.zeros(len(part), np.int64)
        active = np.arange(len(part))
        while True:
            due = active[left[active] == 0]
            if due.size:
                left[due] = self._counts(part, due)
            active = active[left[active] > 0]
            if part.live is not None:
                active = active[part.live[active]]
            if not active.size:
                return owners, chunks
            if active.size < _FEW and len(chunks) > _PATIENCE:
                part.hand_over(active)
                return owners, chunks
            here = part.part(active)
            chunks.append(self._entries(here))
            owners.append(active)
            here.check_ends(self.path)
            part.rejoin(here, active)
            left[active] -= 1

    def _counts(self, part: Cursor, due: Any) -> Any:
        """Return how many items the next block has; 0 if there is none."""
        here = part.part(due)
        counts = here.number(None, self.path)
        sized = counts < 0
        if sized.any():
            sizes = here.number(sized, self.path)
            here.fail(counts == _LEAST, sized, self.path, _OUT_OF_RANGE)
            here.fail(sizes < 0, here.still(sized), self.path, NEGATIVE)
            here.fail(sizes > here.end - here.at, here.still(sized), self.path, ENDS_EARLY)
            counts = np.abs(counts)
        here.check_ends(self.path)
        if here.live is not None:
            counts = counts * here.live
        part.rejoin(here, due)
        return counts

    def _entries(self, here: Cursor) -> pa.Array:
        if not self._has_keys:
            return self._item.read(here, None)
        keys = build.text(here, raw(here, None, None, self.path), None, self.path)
        if keys.null_count:  # invalid text: the record is bad, but a key cannot be null
            keys = keys.fill_null("")
        return build.structs(self._entry, [keys, self._item.read(here, here.live)], len(here), None)

    # read separately -------------------------------------------------------------------------------------------------

    def one(self, reading: Reading) -> Any:
        found: list[Any] = []
        while count := self._count(reading):
            before = reading.at
            for _ in range(count):
                if self._has_keys:
                    key = _key(reading, self.path)
                    found.append((key, self._item.one(reading)))
                else:
                    found.append(self._item.one(reading))
                    if reading.at == before:
                        reading.empty_items += 1
                        if reading.empty_items > _MOST_EMPTY_ITEMS:
                            raise BadValue(self.path, _TOO_MANY)
        return dict(found) if self._has_keys and reading.plain else found

    def _count(self, reading: Reading) -> int:
        count = reading.number(self.path)
        if count >= 0:
            return count
        size = reading.number(self.path)
        if count == _LEAST:
            raise BadValue(self.path, _OUT_OF_RANGE)
        if size < 0:
            raise BadValue(self.path, NEGATIVE)
        if size > len(reading.data) - reading.at:
            raise BadValue(self.path, ENDS_EARLY)
        return -count


def _key(reading: Reading, path: str) -> str:
    try:
        return one_raw(reading, None, path).decode()
    except UnicodeDecodeError:
        raise BadValue(path, build.NOT_UTF8) from None


def _no_branch(count: int) -> str:
    return f"the branch does not exist in a union of {count}"
