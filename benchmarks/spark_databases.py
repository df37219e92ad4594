"""K7: an upsert into PostgreSQL, beside SQLAlchemy's `executemany` of the same statement, row by row.

The orders are those of the landing, ten fields and where they come from. A batch of new keys, then one of the same
keys, which is the server's work above all: both ways end with the same rows. Without Spark: what its driver does with
files that tasks staged.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from figures import Figure
from harness import Numbers, case
from outbox_databases import database
from spark_decoding import _batch, _decoder
from spark_landing import values

DATABASE_FIGURES = [
    Figure("K7a", "upsert of new keys / executemany", "upsert PostgreSQL:new", "upsert PostgreSQL:new by row", 6, 10),
    Figure("K7b", "of keys that are there", "upsert PostgreSQL:known", "upsert PostgreSQL:known by row", 2, 6),
]
_KEY = "order_id"


def _orders(n: int, offset: int) -> Any:
    """Decoded, as a batch whose first offset is this one."""
    import pyarrow as pa

    rows = _decoder().rows(_batch(values(n))).rows
    at = rows.schema.get_field_index("_offset")
    return pa.Table.from_batches([rows.set_column(at, "_offset", pa.array(range(offset, offset + n), pa.int64()))])


def _landed(url: str, batches: list[Any]) -> list[float]:
    import pyarrow.parquet as pq

    from spark_sinks.targets.choose import open_target
    from spark_sinks.targets.target import Batch, NewTable, StagedFile

    target = open_target(f"{url}#landed")
    target.open(NewTable("orders", upsert=(_KEY,)), 0)
    taken: list[float] = []
    for rows in batches:
        path = Path(target.stage_directory()) / "0.staged"
        pq.write_table(rows, path, compression="zstd")
        end = rows["_offset"][-1].as_py() + 1
        begin = time.perf_counter()
        staged = StagedFile(str(path), "", rows.num_rows, path.stat().st_size)
        target.commit(Batch({0: end}, [staged], [], rows.schema), 0)
        taken.append(time.perf_counter() - begin)
    assert sum(len(each) for each in target.read([_KEY])) == batches[0].num_rows
    target.close()
    return taken


def _row_by_row(url: Any, batches: list[Any]) -> list[float]:
    from sqlalchemy import create_engine, text

    engine = create_engine(url)
    names: list[str] = batches[0].schema.names
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name != _KEY)
    marks = ", ".join(f":{name}" for name in names)
    upsert = text(
        f"INSERT INTO plain ({', '.join(names)}) VALUES ({marks}) ON CONFLICT ({_KEY}) DO UPDATE SET {changed}"
    )
    taken: list[float] = []
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE plain (LIKE landed, PRIMARY KEY ({_KEY}))"))
    for rows in batches:
        values = rows.to_pylist()
        begin = time.perf_counter()
        with engine.begin() as connection:
            connection.execute(upsert, values)
        taken.append(time.perf_counter() - begin)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM plain")).scalar_one() == batches[0].num_rows
    engine.dispose()
    return taken


@case("upsert PostgreSQL", n=50_000, quick=2_000)
def upsert(n: int) -> Numbers:
    batches = [_orders(n, 0), _orders(n, n)]
    with database("PostgreSQL") as url:
        ours = _landed(url.render_as_string(hide_password=False), batches)
        plain = _row_by_row(url, batches)
    names = ("new", "known", "new by row", "known by row")
    return {name: n / seconds for name, seconds in zip(names, ours + plain, strict=True)}
