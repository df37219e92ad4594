"""What every target promises, as tests: `Conformance` runs unchanged against all of them, given a `Rig`.

A table is landed in a fixed story (`Story`): two partitions, rows of two days, refused records, a column that comes
later. Every lasting step that a target makes goes through `Steps`, which lets the process die, or the disk be full,
before any of them.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from eventbus.errors import ConfigError, CorruptRecord, LogLocked, ProducerFenced, StorageError, StorageFull
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.values import ValueSettings
from spark_sinks.names import check_names, doc_of, field_of
from spark_sinks.shape import DATE, KEY, TOMBSTONE, coordinate_fields, quarantine_schema
from spark_sinks.stage import Layout, StageWriter
from spark_sinks.targets.place import place_of
from spark_sinks.targets.rewrite import write_file
from spark_sinks.targets.target import Batch, NewTable, SinkState, StagedFile, Target
from tests.spark.decoding.batches import source_batch

NOW_MS = 1_709_251_199_000
FIRST_DAY = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
Record = tuple[int, int]  # partition, offset


class Crash(BaseException):
    """The process is gone."""


class Steps:
    """Counts the lasting steps of a target; lets it fail before a chosen one."""

    def __init__(self) -> None:
        self.taken = 0
        self._fail_at = -1
        self._error: Callable[[], BaseException] = Crash

    def fail_at(self, step: int, error: Callable[[], BaseException] = Crash) -> None:
        """Fail once, before the step of this number, counted from here."""
        self.taken, self._fail_at, self._error = 0, step, error

    def step(self) -> None:
        number, self.taken = self.taken, self.taken + 1
        if number == self._fail_at:
            raise self._error()


class Stepping:
    """An object whose methods of these names are steps: it may fail before each, and after those in ``after`` too."""

    def __init__(self, inner: Any, steps: Steps, names: Iterable[str], after: Iterable[str] = ()) -> None:
        self._inner = inner
        self._steps = steps
        self._names, self._after = frozenset(names), frozenset(after)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in self._names:
            return value

        def stepped(*args: Any, **named: Any) -> Any:
            self._steps.step()
            result = value(*args, **named)
            if name in self._after:
                self._steps.step()
            return result

        return stepped


class Rig:
    """How the kit makes one kind of table. A subclass per target; one object per test, with one table."""

    upserts = False
    compacts = True
    every = 1
    """Of so many steps the quick tier fails one, where a table is slow to make; the long tier fails them all."""
    refused_partitions: Collection[str] = ()
    """The `PARTITIONS` that this kind cannot have."""
    locks = True
    """Whether a second landing on this machine is refused at once."""
    nests = True
    """Whether its schema has the fields of nested values."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.steps = Steps()

    def target(self) -> Target:
        """Another target object for the table, whose steps are counted by ``self.steps``."""
        raise NotImplementedError

    def abandon(self, target: Target) -> None:
        """What the death of its process does to a target: locks of the operating system and connections fall.

        For a target of files also what being on another machine does: its lock is not seen.
        """
        lock = getattr(target, "lock", None)
        if lock is not None:
            lock.release()

    def edit_account(self, change: Callable[[str], str]) -> None:
        """Change the account's text as it is kept, with any tool but ours."""
        raise NotImplementedError

    def outside(self) -> list[Record] | None:
        """The records that a reader which knows nothing of us sees; None where the kind has no such readers."""
        return None

    def readers(self) -> Mapping[str, Callable[[], pa.Table]]:
        """The whole table, as readers see it that know nothing of us."""
        return {}

    def schema(self) -> pa.Schema | None:
        """The table's own schema; None if its kind has no place for the names of fields."""
        return None

    def state(self) -> SinkState | None:
        return self.target().state()

    def records(self) -> list[Record]:
        return records(self.target())

    def refused(self) -> list[Record]:
        return refused(self.target())


def new_table(target: Target, **changes: Any) -> NewTable:
    new_table = NewTable("orders", (DATE,) if target.is_partitioned else (), started={0: 0, 1: 0})
    return new_table._replace(**changes)


def table_columns(target: Target, *, wide: bool = False, key: bool = False) -> pa.Schema:
    """The columns of the story's table; ``wide``: after the change in its middle."""
    fields: list[Any] = [pa.field("amount", pa.int64() if wide else pa.int32())]
    fields += [pa.field("note", pa.string())] if wide else []
    fields += [pa.field(KEY, pa.binary())] if key else []
    fields += list(coordinate_fields())
    fields += [pa.field(DATE, pa.date32())] if target.is_partitioned else []
    return pa.schema(fields)


class Row(NamedTuple):
    """A row as the kit writes it. Its day follows from its offset, the rest is the same in all of them."""

    partition: int
    offset: int
    key: bytes | None = None
    amount: int | None = None
    tombstone: bool = False


def stage(target: Target, rows: list[Row], columns: pa.Schema, *, tombstones: bool = False) -> list[StagedFile]:
    """Write rows as tasks do: a file per day, or one for a target that is not partitioned."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        day = _timestamp(row).date().isoformat()
        groups.setdefault(f"{DATE}={day}" if target.is_partitioned and DATE in columns.names else "", []).append(row)
    fields = [field for field in columns if field.name != DATE or target.keeps_partition_columns]
    fields += [pa.field(TOMBSTONE, pa.bool_())] if tombstones else []
    staged: list[StagedFile] = []
    for directory, group in groups.items():
        table = pa.Table.from_pylist([_values(row) for row in group], pa.schema(fields))
        staged.append(_write(target, table, f"{len(staged)}.staged", directory))
    return staged


def stage_refused(target: Target, records: list[Record]) -> list[StagedFile]:
    """Write refused records as tasks do."""
    if not records:
        return []
    rows = [{**_values(Row(*record)), "value": b"?", "schema_id": 7, "error": "no"} for record in records]
    return [_write(target, pa.Table.from_pylist(rows, quarantine_schema()), "refused.staged", "")]


def _write(target: Target, table: pa.Table, name: str, directory: str) -> StagedFile:
    return write_file(place_of(target.stage_directory()) / name, directory, table.to_batches(), "zstd")


def _timestamp(row: Row) -> dt.datetime:
    return FIRST_DAY + dt.timedelta(days=row.offset % 2, microseconds=row.offset)


def _values(row: Row) -> dict[str, Any]:
    return {
        "amount": None if row.tombstone else row.offset if row.amount is None else row.amount,
        "note": None if row.tombstone else "late",
        DATE: _timestamp(row).date(),
        KEY: row.key,
        "_topic": "orders",
        "_partition": row.partition,
        "_offset": row.offset,
        "_timestamp": _timestamp(row),
        TOMBSTONE: row.tombstone,
    }


PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (
        pa.string(),
        [
            *("a b", "a/b", "100%", "a%20b", "é" * 40, "a:b=c", "'", "01234", "null", "NULL", "None", "nan", "true"),
            *("2024-02-29", "\0", "\n", "..", ".", "+1", " x ", "😀", None),
        ],
    ),
    "integer": (pa.int64(), [0, -1, 2**63 - 1, -(2**63), None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "decimal": (pa.decimal128(38, 0), [Decimal("-7"), Decimal(0), Decimal("9" * 38), None]),
    "fraction": (pa.decimal128(12, 10), [Decimal("0E-10"), Decimal("1.5"), Decimal("-1E-10"), None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(999, 2, 3), dt.date(9999, 12, 31), None]),
    "instant": (
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(1, 1, 1, tzinfo=dt.UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
            dt.datetime(2024, 2, 29, 23, 59, 59, 123_456, dt.UTC),
            None,
        ],
    ),
    "local time": (pa.timestamp("us"), [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 23, 59, 59, 1), None]),
}
"""The types that tables are partitioned by, with the values whose text is easily confused."""


def land_values(
    target: Target, kind: pa.DataType, values: list[Any], number: int, upsert: tuple[str, ...] = ()
) -> None:
    """Land commit ``number`` of rows with these values in the partition column ``p``."""
    target.open(new_table(target, partition_by=("p",), upsert=upsert), NOW_MS)
    columns = pa.schema([("p", kind), (KEY, pa.binary()), *coordinate_fields()])
    rows = [{**_values(Row(0, number * len(values) + each)), "p": value} for each, value in enumerate(values)]
    writer = StageWriter(target.stage_directory(), Layout(("p",), in_files=target.keeps_partition_columns))
    fields = [*columns, pa.field(TOMBSTONE, pa.bool_())] if upsert else columns
    for batch in pa.Table.from_pylist(rows, pa.schema(fields)).to_batches():
        writer.write(batch)
    target.commit(Batch({0: (number + 1) * len(values)}, writer.finish(), [], columns), NOW_MS)


def values_of(target: Target) -> list[str]:
    """Return what the partition column ``p`` holds, as a reader of its kind of table sees it."""
    return sorted(repr(value) for batch in target.read(["p"]) for value in batch.column("p").to_pylist())


NAMES = (
    *("id", "ID", "Id", "ID__2", "a b", "a.b", "a`b", "a'b", "a/b", "select", "ORDER", "1", "?", "%s"),
    *("x:y", "{a}", "a,b;", "xmin", "_row", "ß", "SS", "İ", "i", "é", "😀", "😁", "end ", "", "é" * 100, "É" * 99),
    *("n" * 255, "N" * 255, "n" * 254 + "o", "_OFFSET", "_Topic"),
)
"""Names of fields that some table or reader has trouble with."""


def land_names(target: Target, offset: int, names: Sequence[str]) -> dict[str, Any]:
    """Land a JSON value with fields of these names, also in a struct, a list and a map. Return the value."""
    state = target.open(new_table(target, partition_by=()), NOW_MS)
    fields = [(name, pa.int64()) for name in names]
    inner = pa.struct([(name, pa.string()) for name in names])
    outer = pa.struct([("s", inner), ("S", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    settings = ValueSettings("t", schema=pa.schema([*fields, ("outer", outer)]), names=target.names)
    plan = open_values(settings, url="file:///nowhere").plan(state.value_columns())
    texts = {name: f"{offset} {name}" for name in names}
    numbers = {name: offset + number for number, name in enumerate(names)}
    value = {**numbers, "outer": {"s": texts, "S": [texts, texts], "m": {"k": texts}}}
    rows = plan.decoder().rows(source_batch([json.dumps(value).encode()], first=offset)).rows
    check_names(rows.schema, target.names)
    file = _write(target, pa.Table.from_batches([rows]), "0.staged", "")
    target.commit(Batch({0: offset + 1}, [file], [], rows.schema), NOW_MS)
    target.close()
    return value


def of_fields(value: Any, kind: Any, names: Collection[str]) -> Any:
    """A value by the names of its fields in place of the columns'. Fields that it had no names of are left out."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        fields = {field_of(field): (value[field.name], field.type) for field in kind}
        return {name: of_fields(*field, names) for name, field in fields.items() if name in names}
    if pa.types.is_list(kind):
        return [of_fields(each, kind.value_type, names) for each in value]
    if pa.types.is_map(kind):
        return {key: of_fields(each, kind.item_type, names) for key, each in dict(value).items()}
    return value


def docs(columns: Any, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """What a schema says of the columns that are renamed, by their paths."""
    found: dict[tuple[str, ...], str] = {}
    for field in columns:
        kind, path = field.type, (*above, field.name)
        found |= {path: doc_of(field)} if doc_of(field) else {}
        if pa.types.is_nested(kind):
            inner = kind if pa.types.is_struct(kind) else kind.item_type if pa.types.is_map(kind) else kind.value_type
            found |= docs(inner, path)
    return found


def records(target: Target) -> list[Record]:
    """The records in a table, as our own reader sees them."""
    return _coordinates(target.read(["_partition", "_offset"]))


def refused(target: Target) -> list[Record]:
    return _coordinates(target.read_quarantine())


def _coordinates(batches: Iterable[pa.RecordBatch]) -> list[Record]:
    columns = ("_partition", "_offset")
    return sorted((row["_partition"], row["_offset"]) for each in batches for row in each.select(columns).to_pylist())


# -- the story --------------------------------------------------------------------------------------------------------

PER_BATCH = 4
WIDE_FROM = 1
"""The batch that brings another column, and a wider one."""


class Story:
    """A landing from where the table is to its end, ``PER_BATCH`` offsets of both partitions at a time.

    The record at offset 3 of every batch's partition 1 is refused.
    """

    def __init__(self, rig: Rig, *, long: bool = False) -> None:
        self.rig = rig
        self.compact = long and rig.compacts
        self.batches = 3 if long else 2

    def run(self) -> None:
        target = self.rig.target()
        try:
            state = target.open(new_table(target), NOW_MS)
            while (number := self.batches_done(state)) < self.batches:
                state = target.commit(self.batch(target, number), NOW_MS + number)
                if self.compact and number >= 1:
                    target.compact(before=None if not target.is_partitioned else "2024-03-01", min_files=2)
        except BaseException:
            self.rig.abandon(target)
            target.close()
            raise
        target.close()

    def batch(self, target: Target, number: int) -> Batch:
        columns = table_columns(target, wide=number >= WIDE_FROM)
        bad = self.refused_in(number)
        rows = [Row(*record) for record in self.records_in(number)]
        end = (number + 1) * PER_BATCH
        return Batch({0: end, 1: end}, stage(target, rows, columns), stage_refused(target, bad), columns)

    @staticmethod
    def batches_done(state: SinkState) -> int:
        assert len(set(state.offsets.values())) == 1, "a batch is in the table with some of its partitions"
        return state.offsets[0] // PER_BATCH

    @staticmethod
    def refused_in(number: int) -> list[Record]:
        return [(1, number * PER_BATCH + 3)]

    @classmethod
    def records_in(cls, number: int) -> list[Record]:
        offsets = range(number * PER_BATCH, (number + 1) * PER_BATCH)
        return [(p, o) for p in (0, 1) for o in offsets if (p, o) not in cls.refused_in(number)]

    @classmethod
    def expected(cls, batches: int) -> tuple[list[Record], list[Record]]:
        """Records and refused records of a table with so many batches."""
        numbers = range(batches)
        return sorted(r for n in numbers for r in cls.records_in(n)), sorted(
            r for n in numbers for r in cls.refused_in(n)
        )

    def check(self, *, outside: bool) -> None:
        """The table holds what its account says, each record once. ``outside``: for readers of files too."""
        state = self.rig.state()
        if state is None:
            return
        rows, bad = self.expected(self.batches_done(state))
        assert self.rig.records() == rows
        assert self.rig.refused() == bad
        assert (state.rows, state.rejected) == (len(rows), len(bad))
        seen = self.rig.outside()
        if seen is not None:
            assert len(seen) == len(set(seen)), "a reader sees records twice"
            if outside:
                assert seen == rows

    def steps(self) -> int:
        """How many steps a run from the beginning to the end takes."""
        self.rig.steps.fail_at(-1)
        self.run()
        return self.rig.steps.taken


MakeRig = Callable[[str], Rig]
"""A new rig, with a table of this name that does not exist."""
LONG = [pytest.mark.slow, pytest.mark.timeout(600)]
"""A crash at each step of a long story: half a minute, and two where others are at work."""


class Conformance:
    """Subclass it with a fixture ``rigs`` (`MakeRig`)."""

    @pytest.fixture(autouse=True)
    def no_power_cuts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only processes die here: waiting for the disk at thousands of steps would prove nothing."""
        monkeypatch.setattr(os, "fsync", lambda handle: None)

    @pytest.fixture
    def rig(self, rigs: MakeRig) -> Rig:
        return rigs("orders")

    def opened(self, rig: Rig, **changes: Any) -> tuple[Target, SinkState]:
        target = rig.target()
        return target, target.open(new_table(target, **changes), NOW_MS)

    # -- the account --------------------------------------------------------------------------------------------------

    def test_no_table_has_no_account(self, rig: Rig) -> None:
        assert rig.state() is None
        assert rig.records() == []
        assert rig.refused() == []

    def test_founding_and_opening_again(self, rig: Rig) -> None:
        target, state = self.opened(rig, started={0: 7, 2: 3})
        assert (state.topic, state.epoch, state.sequence, state.rows) == ("orders", 1, 0, 0)
        assert state.started == state.offsets == {0: 7, 2: 3}
        assert len(state.id) == 8
        assert state.columns() is None
        target.close()
        again, other = self.opened(rig, started={0: 99})
        assert (other.id, other.epoch, other.sequence) == (state.id, 2, 0)
        assert other.started == other.offsets == {0: 7, 2: 3}
        again.close()
        assert rig.state() == other

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"topic": "flights"}, "holds topic 'orders', not 'flights'"),
            ({"transformed": True}, "made with no transform"),
            ({"upsert": ("amount",)}, "upsert"),
            ({"topic_id": "b"}, "a topic 'orders' that was deleted. The present topic of this name was created later"),
        ],
    )
    def test_opening_it_otherwise_is_refused(self, rig: Rig, changes: dict[str, Any], text: str) -> None:
        target, state = self.opened(rig, topic_id="a")
        target.close()
        with pytest.raises(ConfigError, match=text):
            self.opened(rig, **changes)
        assert rig.state() == state
        self.opened(rig)[0].close()

    def test_topic_that_had_no_id_yet_gets_one(self, rig: Rig) -> None:
        for id in ("", "a", ""):
            target, state = self.opened(rig, topic_id=id)
            target.close()
        assert state.topic_id == "a"

    def test_the_first_rows_decide_what_the_keys_column_is_called(self, rig: Rig) -> None:
        if not rig.upserts:
            pytest.skip("this kind has no keys")
        for key in ("key", KEY):
            target = rig.target()
            assert target.open(new_table(target, upsert=(key,)), NOW_MS).upsert == (key,)
            target.close()
        assert rig.target().state().upsert == (KEY,)

    def test_other_partition_columns_are_refused(self, rig: Rig) -> None:
        target, _ = self.opened(rig)
        target.close()
        if target.is_partitioned:
            with pytest.raises(ConfigError, match="partitioned by dt, not by amount"):
                self.opened(rig, partition_by=("amount",))

    def test_commit_is_there_at_once_and_after_opening_again(self, rig: Rig) -> None:
        story = Story(rig)
        target, _ = self.opened(rig)
        for number in range(2):
            state = target.commit(story.batch(target, number), NOW_MS + number)
            assert rig.state() == state
            story.check(outside=True)
        assert state.sequence == 2
        assert state.committed_at_ms == NOW_MS + 1
        assert state.columns() == table_columns(target, wide=True)
        target.close()
        again, reopened = self.opened(rig)
        assert reopened.offsets == {0: 2 * PER_BATCH, 1: 2 * PER_BATCH}
        assert (reopened.epoch, reopened.sequence, reopened.schema) == (2, 2, state.schema)
        again.close()
        story.check(outside=True)

    def test_values_come_back(self, rig: Rig) -> None:
        target, _ = self.opened(rig)
        columns = table_columns(target)
        rows = [Row(0, offset) for offset in range(4)]
        target.commit(Batch({0: 4}, stage(target, rows, columns), [], columns), NOW_MS)
        read = pa.Table.from_batches(target.read(columns.names)).sort_by("_offset")
        expected = [{name: value for name, value in _values(row).items() if name in columns.names} for row in rows]
        if target.is_partitioned:
            expected = [{**each, DATE: each["_timestamp"].date()} for each in expected]
        assert read.to_pylist() == expected
        target.close()

    def test_offsets_never_go_back(self, rig: Rig) -> None:
        story = Story(rig)
        target, _ = self.opened(rig)
        target.commit(story.batch(target, 0), NOW_MS)
        with pytest.raises(CorruptRecord, match="orders-1 would go back to offset 3"):
            target.commit(Batch({1: 3}, [], [], table_columns(target)), NOW_MS)
        target.close()
        story.check(outside=True)

    def test_commit_of_offsets_only(self, rig: Rig) -> None:
        target, _ = self.opened(rig)
        before = target.commit(Batch({0: 5, 4: 2}, [], [], pa.schema([])), NOW_MS)
        assert before.columns() is None
        assert (before.sequence, before.offsets) == (1, {0: 5, 1: 0, 4: 2})
        columns = table_columns(target)
        rows = [Row(0, 5)]
        target.commit(Batch({0: 6}, stage(target, rows, columns), [], columns), NOW_MS)
        after = target.commit(Batch({0: 9}, [], [], columns), NOW_MS)
        assert (after.sequence, after.offsets) == (3, {0: 9, 1: 0, 4: 2})
        assert rig.state() == after
        assert rig.records() == [(0, 5)]
        target.close()

    def test_target_that_is_not_open_says_so(self, rig: Rig) -> None:
        target = rig.target()
        with pytest.raises(ConfigError, match="not open"):
            target.commit(Batch({0: 1}, [], [], pa.schema([])), NOW_MS)

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda account: account[: len(account) // 2], "damaged"),
            (lambda account: re.sub(r'"version": ?[0-9]', '"version": 9', account), "version 9.*upgrade"),
        ],
        ids=["damaged", "newer"],
    )
    def test_account_that_cannot_be_read_is_refused(self, rig: Rig, change: Callable[[str], str], text: str) -> None:
        target, _ = self.opened(rig)
        target.commit(Story(rig).batch(target, 0), NOW_MS)
        target.close()
        rig.edit_account(change)
        with pytest.raises(CorruptRecord, match=text):
            rig.state()
        with pytest.raises(CorruptRecord, match=text):
            self.opened(rig)

    # -- refused records ----------------------------------------------------------------------------------------------

    def test_refused_records_wait_until_they_are_replaced(self, rig: Rig) -> None:
        story = Story(rig)
        target, _ = self.opened(rig)
        for number in range(2):
            target.commit(story.batch(target, number), NOW_MS)
        assert rig.refused() == [(1, 3), (1, 7)]
        row = next(each for batch in rig.target().read_quarantine() for each in batch.to_pylist())
        assert (row["value"], row["schema_id"], row["error"]) == (b"?", 7, "no")
        columns = table_columns(target, wide=True)
        mended = Batch({}, stage(target, [Row(1, 3)], columns), stage_refused(target, [(1, 7)]), columns, True)
        state = target.commit(mended, NOW_MS)
        assert rig.refused() == [(1, 7)]
        assert (1, 3) in rig.records()
        assert (state.rows, state.rejected, state.quarantine_from) == (15, 2, 2)
        target.close()
        target, _ = self.opened(rig)
        assert rig.refused() == [(1, 7)]
        target.commit(Batch({}, stage(target, [Row(1, 7)], columns), [], columns, True), NOW_MS)
        target.close()
        assert rig.refused() == []
        assert len(rig.records()) == 16

    # -- columns ------------------------------------------------------------------------------------------------------

    def test_far_times_in_files(self, rig: Rig) -> None:
        """Files hold years that Python has no dates for."""
        target = rig.target()
        if not target.is_partitioned:
            pytest.skip("a database has no such years, and says so: see tests/spark/targets/sql")
        target.open(new_table(target, partition_by=()), NOW_MS)
        far = [-(1 << 60), -62_135_596_800_000_001, -30_610_224_000_000_000, 1 << 60]
        fields = [pa.field("far", pa.timestamp("us", "UTC")), *coordinate_fields()]
        rows = [{**_values(Row(0, offset)), "far": each} for offset, each in enumerate(far)]
        table = pa.Table.from_pylist(rows, pa.schema(fields))
        target.commit(Batch({0: 4}, [_write(target, table, "far.staged", "")], [], table.schema), NOW_MS)
        read = pa.Table.from_batches(target.read(["far"]))["far"].cast(pa.int64()).to_pylist()
        target.close()
        assert sorted(read) == far

    def test_a_batch_that_only_adds_a_column(self, rig: Rig) -> None:
        target, _ = self.opened(rig)
        for number, columns in enumerate(
            (table_columns(target, wide=True).remove(1), table_columns(target, wide=True))
        ):
            target.commit(Batch({0: number + 1}, stage(target, [Row(0, number)], columns), [], columns), NOW_MS)
        read = pa.Table.from_batches(target.read(["note", "_offset"])).to_pylist()
        target.close()
        assert {row["_offset"]: row["note"] for row in read} == {0: None, 1: "late"}

    def test_each_field_has_a_column_whatever_its_name(self, rig: Rig) -> None:
        """A later value has its fields in another order, and some more."""
        most, every = NAMES[::2], NAMES[::-1]
        values = [land_names(rig.target(), number, names) for number, names in enumerate((most, every, most))]
        state = rig.state()
        columns = None if state is None else state.value_columns()
        assert columns is not None
        assert sorted(map(field_of, columns)) == sorted([*NAMES, "outer"])
        schema = rig.schema()
        if schema is not None:
            expected = docs(columns)
            assert {'field "Id"', 'field ""'} <= set(expected.values())
            assert docs(schema) == {path: doc for path, doc in expected.items() if len(path) == 1 or rig.nests}
        wanted = [*columns.names, "_offset"]
        readers = {"ours": lambda: pa.Table.from_batches(rig.target().read(wanted)), **rig.readers()}
        for reader, read in readers.items():
            rows = sorted(read().to_pylist(), key=lambda row: row["_offset"])
            for row, value, names in zip(rows, values, (most, every, most), strict=True):
                known = {*names, "outer", "s", "S", "m"}
                assert of_fields(row, pa.struct([*columns]), known) == value, reader

    def test_columns_widen(self, rig: Rig) -> None:
        story = Story(rig)
        target, _ = self.opened(rig)
        target.commit(story.batch(target, 0), NOW_MS)
        columns = table_columns(target, wide=True)
        big = [Row(0, 4, amount=1 << 40)]
        state = target.commit(Batch({0: 5, 1: 4}, stage(target, big, columns), [], columns), NOW_MS)
        target.close()
        target, again = self.opened(rig)
        read = pa.Table.from_batches(target.read(["amount", "note", "_partition", "_offset"])).to_pylist()
        target.close()
        values = {(each["_partition"], each["_offset"]): (each["amount"], each["note"]) for each in read}
        assert values[0, 4] == (1 << 40, "late")
        assert values[1, 2] == (2, None)
        assert {f.name: f.type for f in state.columns()} == {f.name: f.type for f in columns}
        assert again.schema == state.schema

    # -- two landings -------------------------------------------------------------------------------------------------

    def test_second_landing_on_this_machine_is_refused(self, rig: Rig) -> None:
        if not rig.locks:
            pytest.skip("a database lets the second one in, and fences the first")
        target, state = self.opened(rig)
        with pytest.raises(LogLocked, match="is being landed by process"):
            self.opened(rig)
        assert rig.state() == state
        target.commit(Story(rig).batch(target, 0), NOW_MS)
        target.close()

    @pytest.mark.parametrize("second_commits", [False, True])
    @pytest.mark.parametrize("offsets_only", [False, True])
    def test_landing_that_lost_its_table_cannot_commit(
        self, rig: Rig, second_commits: bool, offsets_only: bool
    ) -> None:
        story = Story(rig)
        first, _ = self.opened(rig)
        first.commit(story.batch(first, 0), NOW_MS)
        late = Batch({0: 99}, [], [], table_columns(first)) if offsets_only else story.batch(first, 1)
        rig.abandon(first)
        second, state = self.opened(rig)
        assert state.epoch == 2
        if second_commits:
            state = second.commit(story.batch(second, 1), NOW_MS)
        if not offsets_only:  # opening cleared the stage: what matters is that the commit is refused
            late = story.batch(first, 1)
        with pytest.raises(ProducerFenced, match="took"):
            first.commit(late, NOW_MS)
        assert rig.state() == state
        story.check(outside=True)
        state = second.commit(story.batch(second, Story.batches_done(state)), NOW_MS)
        story.check(outside=True)
        second.close()
        first.close()

    def test_reader_in_a_loop_sees_each_record_once(self, rig: Rig) -> None:
        """Never a torn file, a record twice, or one missing that was there when it began to look."""
        story = Story(rig)
        target, _ = self.opened(rig)
        target.commit(story.batch(target, 0), NOW_MS)
        done = threading.Event()
        committed = set(story.expected(1)[0])

        def look() -> int:
            looks = 0
            while not done.is_set() or not looks:
                before = set(committed)
                seen = rig.outside()
                seen = rig.records() if seen is None else seen
                assert len(seen) == len(set(seen))
                assert before <= set(seen)
                looks += 1
            return looks

        with ThreadPoolExecutor(1) as threads:
            looking = threads.submit(look)
            try:
                for number in range(1, 6):
                    target.commit(story.batch(target, number), NOW_MS)
                    committed |= set(story.records_in(number))
            finally:
                done.set()
            assert looking.result()
        target.close()
        assert rig.records() == sorted(committed)

    # -- crashes ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("long", [False, pytest.param(True, marks=LONG)])
    def test_crash_before_every_step(self, rigs: MakeRig, long: bool) -> None:
        counted = rigs("counted")
        steps = Story(counted, long=long).steps()
        assert steps > 2
        for step in range(0, steps, 1 if long else counted.every):
            rig = rigs(f"orders{step}")
            story = Story(rig, long=long)
            rig.steps.fail_at(step)
            with pytest.raises(Crash):
                story.run()
            story.check(outside=False)
            if long:
                self.opened(rig)[0].close()
                story.check(outside=True)
            story.run()
            story.check(outside=True)
            state = rig.state()
            assert state is not None
            assert Story.batches_done(state) == story.batches

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_crash_of_the_recovery(self, rigs: MakeRig) -> None:
        steps = Story(rigs("counted"), long=True).steps()
        for step in range(1, steps, 5):
            for second in range(100):
                rig = rigs(f"orders{step}x{second}")
                story = Story(rig, long=True)
                rig.steps.fail_at(step)
                with pytest.raises(Crash):
                    story.run()
                target = rig.target()
                rig.steps.fail_at(second)
                try:
                    target.open(new_table(target), NOW_MS)
                except Crash:
                    rig.abandon(target)
                    target.close()
                    story.run()
                    story.check(outside=True)
                    continue
                target.close()
                break
            else:
                pytest.fail("opening takes more than 100 steps")

    @pytest.mark.parametrize("long", [False, pytest.param(True, marks=LONG)])
    def test_disk_full_at_every_step(self, rigs: MakeRig, long: bool) -> None:
        steps = Story(rigs("counted"), long=long).steps()
        refusals = 0
        for step in range(steps):
            rig = rigs(f"orders{step}")
            story = Story(rig, long=long)
            rig.steps.fail_at(step, lambda: StorageFull("cannot write: No space left on device"))
            try:
                story.run()
            except StorageError as error:
                assert isinstance(error, StorageFull)
                refusals += 1
                story.check(outside=False)
            story.run()
            story.check(outside=True)
        assert refusals > steps / 2

    def test_target_goes_on_after_an_error_when_opened_again(self, rig: Rig) -> None:
        story = Story(rig)
        target, _ = self.opened(rig)
        target.commit(story.batch(target, 0), NOW_MS)
        batch = story.batch(target, 1)
        rig.steps.fail_at(0, lambda: StorageFull("cannot write: No space left on device"))
        with pytest.raises(StorageFull):
            target.commit(batch, NOW_MS)
        with pytest.raises(ConfigError, match="not open"):
            target.commit(batch, NOW_MS)
        story.check(outside=True)
        state = target.open(new_table(target), NOW_MS)
        assert Story.batches_done(state) == 1
        target.commit(story.batch(target, 1), NOW_MS)
        target.close()
        story.check(outside=True)

    # -- compaction ---------------------------------------------------------------------------------------------------

    def test_compaction_keeps_rows_and_account(self, rig: Rig) -> None:
        if not rig.compacts:
            pytest.skip("there are no files")
        story = Story(rig)
        target, _ = self.opened(rig)
        for number in range(3):
            target.commit(story.batch(target, number), NOW_MS)
        files = target.files()
        assert files is not None
        assert files.files >= 4
        done = target.compact(before="2024-03-01", min_files=2)
        after = target.files()
        assert after is not None
        assert files.files - after.files == done.files_before - done.files_after
        assert done.files_after <= 1
        story.check(outside=True)
        target.compact(before=None, min_files=2)
        state = target.commit(story.batch(target, 3), NOW_MS)
        assert target.compact(before="2024-02-29", min_files=2).files_before == 0
        assert target.compact(before=None, min_files=99).files_before == 0
        assert state.offsets == {0: 16, 1: 16}
        story.check(outside=True)
        target.close()
        self.opened(rig)[0].close()
        story.check(outside=True)

    @pytest.mark.parametrize("name", PARTITIONS)
    def test_each_value_of_a_partition_column_is_kept(self, rigs: MakeRig, name: str) -> None:
        if not rigs("kind").compacts:
            pytest.skip("there are no partitions")
        rig = rigs("my tables ü 100%")
        target = rig.target()
        if name in rig.refused_partitions:
            with pytest.raises(ConfigError, match=r"partitioned by 'p', which is .*CAST"):
                land_values(target, *PARTITIONS[name], 0)
            return target.close()
        kind, values = PARTITIONS[name]
        for number in range(2):
            land_values(target, kind, values, number)
        expected = sorted(map(repr, 2 * pa.array(values, kind).to_pylist()))
        assert values_of(target) == expected
        done = target.compact(before=None, min_files=2)
        assert (done.files_before, done.files_after) == (2 * len(values), len(values))
        assert values_of(target) == expected
        target.close()


class UpsertConformance:
    """For kinds with `Rig.upserts`. The rows of a table by their record keys."""

    @pytest.fixture
    def rig(self, rigs: MakeRig) -> Rig:
        return rigs("orders")

    @staticmethod
    def open(rig: Rig, upsert: tuple[str, ...] = (KEY,)) -> Target:
        target = rig.target()
        target.open(new_table(target, upsert=upsert, partition_by=()), NOW_MS)
        return target

    @pytest.mark.parametrize("name", PARTITIONS)
    def test_rows_are_upserted_by_each_value_of_a_partition_column(self, rig: Rig, name: str) -> None:
        target, (kind, values) = rig.target(), PARTITIONS[name]
        if not target.is_partitioned or name in rig.refused_partitions:
            pytest.skip("this kind has no such partitions")
        values = [value for value in values if value is not None]
        for number in range(3):
            land_values(target, kind, values, number, upsert=("p",))
        assert values_of(target) == sorted(map(repr, pa.array(values, kind).to_pylist()))
        assert {row["_offset"] // len(values) for each in target.read(["_offset"]) for row in each.to_pylist()} == {2}
        target.close()

    @staticmethod
    def put(target: Target, rows: list[Row], **offsets: int) -> SinkState:
        columns = pa.schema([field for field in table_columns(target, key=True) if field.name != DATE])
        ends: dict[int, int] = {}
        for row in rows:
            ends[row.partition] = max(ends.get(row.partition, 0), row.offset + 1)
        return target.commit(Batch(ends, stage(target, rows, columns, tombstones=True), [], columns), NOW_MS)

    @staticmethod
    def rows(rig: Rig) -> Mapping[bytes, tuple[int, int]]:
        read = [each for batch in rig.target().read([KEY, "amount", "_offset"]) for each in batch.to_pylist()]
        by_key = {each[KEY]: (each["amount"], each["_offset"]) for each in read}
        assert len(by_key) == len(read), "a key is there twice"
        return by_key

    def test_newest_row_of_a_key_stays(self, rig: Rig) -> None:
        target = self.open(rig)
        self.put(target, [Row(0, 0, b"a"), Row(0, 1, b"b"), Row(0, 2, b"a"), Row(1, 0, b"c")])
        assert self.rows(rig) == {b"a": (2, 2), b"b": (1, 1), b"c": (0, 0)}
        self.put(target, [Row(0, 3, b"b"), Row(1, 1, b"d"), Row(0, 4, b"b")])
        assert self.rows(rig) == {b"a": (2, 2), b"b": (4, 4), b"c": (0, 0), b"d": (1, 1)}
        target.close()

    def test_tombstones_take_rows_away(self, rig: Rig) -> None:
        target = self.open(rig)
        self.put(target, [Row(0, 0, b"a"), Row(0, 1, b"b"), Row(0, 2, b"c")])
        self.put(target, [Row(0, 3, b"a", tombstone=True), Row(0, 4, b"new"), Row(0, 5, b"new", tombstone=True)])
        assert self.rows(rig) == {b"b": (1, 1), b"c": (2, 2)}
        self.put(target, [Row(0, 6, b"b", tombstone=True), Row(0, 7, b"b"), Row(0, 8, b"never", tombstone=True)])
        assert self.rows(rig) == {b"b": (7, 7), b"c": (2, 2)}
        target.close()

    def test_other_columns_than_the_key(self, rig: Rig) -> None:
        target = self.open(rig, ("amount",))
        self.put(target, [Row(0, 0, b"a", 1), Row(0, 1, b"b", 2), Row(0, 2, b"b", 3), Row(0, 3, b"c", 4)])
        self.put(target, [Row(0, 4, b"b", tombstone=True), Row(0, 5, b"d", 4), Row(0, 6, b"e", 5)])
        assert self.rows(rig) == {b"a": (1, 0), b"d": (4, 5), b"e": (5, 6)}
        self.put(target, [Row(0, 7, b"e", 6), Row(0, 8, b"e", tombstone=True), Row(0, 9, b"e", 7), Row(0, 10, b"a", 1)])
        assert self.rows(rig) == {b"a": (1, 10), b"d": (4, 5), b"e": (7, 9)}
        target.close()

    def test_older_row_never_replaces_a_newer_one(self, rig: Rig) -> None:
        target = self.open(rig)
        self.put(target, [Row(0, 5, b"a"), Row(0, 6, b"b")])
        columns = pa.schema([field for field in table_columns(target, key=True) if field.name != DATE])
        replay = stage(target, [Row(0, 2, b"a"), Row(0, 3, b"b", tombstone=True)], columns, tombstones=True)
        target.commit(Batch({0: 7}, replay, [], columns), NOW_MS)
        assert self.rows(rig) == {b"a": (5, 5), b"b": (6, 6)}
        target.close()

    def test_deleted_keys_do_not_wait_in_the_quarantine(self, rig: Rig) -> None:
        """A replay would bring them back. All of it is one commit, with what else waits."""
        target = self.open(rig)
        columns = pa.schema([field for field in table_columns(target, key=True) if field.name != DATE])

        def refuse(key: bytes, offset: int) -> list[StagedFile]:
            row = {**_values(Row(0, offset, key)), "key": key, "value": b"?", "error": "no"}
            table = pa.Table.from_pylist([row], quarantine_schema())
            return [_write(target, table, f"refused-{offset}.staged", "")]

        for offset, key in enumerate((b"a", b"b")):
            target.commit(Batch({0: offset + 1}, [], refuse(key, offset), columns), NOW_MS)
        rows = stage(target, [Row(0, 3, b"a", tombstone=True), Row(0, 4, b"c")], columns, tombstones=True)
        batch = Batch({0: 6}, rows, [*refuse(b"a", 2), *refuse(b"a", 5)], columns)
        state = target.commit(batch, NOW_MS)
        assert state.rejected == 4
        assert rig.refused() == [(0, 1), (0, 5)]
        target.close()
        self.open(rig).close()
        assert rig.refused() == [(0, 1), (0, 5)]

    def test_crash_before_every_step_of_an_upsert(self, rigs: MakeRig) -> None:
        batches = [
            [Row(0, 0, b"a"), Row(0, 1, b"b"), Row(0, 2, b"c")],
            [Row(0, 3, b"a", tombstone=True), Row(0, 4, b"b"), Row(0, 5, b"d")],
        ]
        ends = [{b"a": (0, 0), b"b": (1, 1), b"c": (2, 2)}, {b"b": (4, 4), b"c": (2, 2), b"d": (5, 5)}]

        def run(rig: Rig) -> None:
            target = rig.target()
            try:
                state = target.open(new_table(target, upsert=(KEY,), partition_by=()), NOW_MS)
                for number in range(state.offsets[0] // 3, 2):
                    self.put(target, batches[number])
            except BaseException:
                rig.abandon(target)
                target.close()
                raise
            target.close()

        counted = rigs("counted")
        run(counted)
        for step in range(counted.steps.taken):
            rig = rigs(f"orders{step}")
            rig.steps.fail_at(step)
            with pytest.raises(Crash):
                run(rig)
            state = rig.state()
            done = 0 if state is None else state.offsets[0] // 3
            assert self.rows(rig) == (ends[done - 1] if done else {})
            run(rig)
            assert self.rows(rig) == ends[1]
