"""Tables as others read them, without our account, beside what they must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_sinks.targets.choose import TargetOptions, open_target
from tests.spark.faults.given import VALUES, Expected, Place

COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_key", *VALUES)
Rows = list[dict[str, Any]]
Reader = Callable[[str], Rows]


def by_pyarrow(to: str) -> Rows:
    import pyarrow as pa
    import pyarrow.dataset as ds

    files = ds.dataset(to, format="parquet", partitioning="hive").files
    tables = [ds.dataset(file, format="parquet").to_table() for file in files]  # a later one may have more columns
    return pa.concat_tables(tables, promote_options="default").to_pylist() if tables else []


def by_duckdb(to: str) -> Rows:
    import duckdb

    if not [*Path(to).glob("*/*.parquet")]:
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = f"SELECT * FROM read_parquet('{to}/**/*.parquet', hive_partitioning=true, union_by_name=true)"
        return connection.sql(query).to_arrow_table().to_pylist()


def by_deltalake(to: str) -> Rows:
    from deltalake import DeltaTable

    table = DeltaTable(to.removeprefix("delta:"))
    return table.to_pyarrow_table().to_pylist() if table.schema().fields else []


def by_pyiceberg(to: str) -> Rows:
    from pyiceberg.catalog.sql import SqlCatalog

    folder = Path(to.removeprefix("iceberg:"))
    catalog = SqlCatalog("default", uri=f"sqlite:///{folder.parent / 'catalog.db'}", warehouse=folder.parent.as_uri())
    try:
        return catalog.load_table(("default", folder.name)).scan().to_arrow().to_pylist()
    finally:
        catalog.close()


def by_sql(to: str) -> Rows:
    from sqlalchemy import create_engine, inspect, text

    url, _, table = to.partition("#")
    engine = create_engine(url)
    try:
        if not inspect(engine).has_table(table):
            return []
        with engine.connect() as connection:
            quoted = engine.dialect.identifier_preparer.quote(table)
            return [dict(row) for row in connection.execute(text(f"SELECT * FROM {quoted}")).mappings()]
    finally:
        engine.dispose()


READERS: dict[str, list[Reader]] = {
    "parquet": [by_pyarrow, by_duckdb],
    "delta": [by_deltalake],
    "iceberg": [by_pyiceberg],
    "sqlite": [by_sql],
    "postgresql": [by_sql],
    "mysql": [by_sql],
}


def kind_of(to: str) -> str:
    return to.partition(":")[0].partition("+")[0] if ":" in to else "parquet"


def audit(to: str, wanted: Expected, *, complete: bool = True) -> list[str]:
    """What is wrong with a table and its quarantine.

    With ``complete`` nothing may be missing, and nothing that a crash left may be there. Else each record up to the
    account's offsets is there, and in Parquet, which has no other commit than a file's appearance, some of the next
    batch may be.
    """
    state = open_target(to, options=TargetOptions()).state()
    if state is None:
        return [f"{to}: there is no table"] if complete else []
    is_plain = kind_of(to) == "parquet"

    def is_due(place: Place) -> bool:
        return complete or place[1] < state.offsets.get(place[0], 0)

    rows = {place: row for place, row in wanted.rows.items() if is_due(place)}
    wrong: list[str] = []
    for reader in READERS[kind_of(to)]:
        found = [normal(row) for row in reader(to)]
        further = wanted.rows if is_plain and not complete else rows
        wrong += [f"{to}, {reader.__name__}: {each}" for each in differences(found, rows, further)]
    rejected = {place: value for place, value in wanted.rejected.items() if is_due(place)}
    wrong += [f"{to}, quarantine: {each}" for each in _quarantine(to, rejected)]
    if complete and kind_of(to) in ("parquet", "delta", "iceberg"):
        wrong += [f"{to}, quarantine: {each}" for each in _quarantine_files(to, rejected)]
        wrong += [f"{to}: left over: {path}" for path in leftovers(to)]
    return wrong


def differences(found: Rows, wanted: Mapping[Place, dict[str, Any]], further: Mapping[Place, Any]) -> list[str]:
    """``further``: all that may be there."""
    counts = Counter(place_of(row) for row in found)
    wrong = [f"{place} is there {count} times" for place, count in counts.items() if count > 1]
    wrong += [f"{place} is missing" for place in wanted.keys() - counts.keys()]
    wrong += [f"{place} should not be there" for place in counts.keys() - further.keys()]
    for row in found:
        want = further.get(place_of(row))
        if want is not None:
            have = {name: row.get(name) for name in want}
            wrong += [f"{place_of(row)} is {have}, not {want}"] if have != want else []
    return sorted(wrong)[:5]


def place_of(row: Mapping[str, Any]) -> Place:
    return row["_partition"], row["_offset"]


def normal(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in Python's types, whatever the database makes of them; only the columns that `COLUMNS` names."""
    values = {name: row.get(name) for name in COLUMNS}
    for name in ("_timestamp", "placed"):
        values[name] = _moment(values[name])
    if isinstance(values["_key"], memoryview):
        values["_key"] = bytes(values["_key"])
    return values


def _moment(value: Any) -> Any:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value


def _quarantine(to: str, wanted: Mapping[Place, bytes]) -> list[str]:
    """As we read it: crashes leave files in it that do not count."""
    batches = open_target(to, options=TargetOptions()).read_quarantine()
    return _refused((row for batch in batches for row in batch.to_pylist()), wanted)


def _quarantine_files(to: str, wanted: Mapping[Place, bytes]) -> list[str]:
    """As everybody reads its directory."""
    import pyarrow.parquet as pq

    folder = Path(directory_of(to) + "__quarantine")
    files = sorted(folder.glob("*.parquet"))
    return _refused((row for file in files for row in pq.read_table(file).to_pylist()), wanted)


def _refused(rows: Iterable[dict[str, Any]], wanted: Mapping[Place, bytes]) -> list[str]:
    found = [*rows]
    wrong = [f"{row}: no reason" for row in found if not row["error"]]
    values = {place_of(row): row["value"] for row in found}
    if len(values) != len(found):
        wrong.append(f"{len(found) - len(values)} records are there twice")
    wrong += [f"{place} is missing" for place in wanted.keys() - values.keys()]
    wrong += [f"{place} should not be there" for place in values.keys() - wanted.keys()]
    wrong += [f"{place} has another value" for place in values.keys() & wanted.keys() if values[place] != wanted[place]]
    return wrong[:5]


def directory_of(to: str) -> str:
    return to.removeprefix("delta:").removeprefix("iceberg:")


def leftovers(to: str) -> list[str]:
    """Files that no landing needs any more: staged ones, temporary ones, data that no commit names."""
    folder = Path(directory_of(to))
    stray = [str(path) for path in folder.rglob("*") if path.is_file() and path.name.startswith(".")]
    stray = [path for path in stray if not path.endswith(".crc")]
    stray += [str(path) for path in (folder / "_eventbus" / "stage").rglob("*") if path.is_file()]
    counted = open_target(to, options=TargetOptions()).files()
    parts = [path for path in folder.rglob("part-*.parquet") if "_eventbus" not in path.parts]
    if counted is not None and counted.files != len(parts):
        stray.append(f"{len(parts)} data files, {counted.files} of them counted")
    return stray
