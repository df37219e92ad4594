"""Land Avro events in a warehouse as Parquet by day, exactly once; DuckDB reads them, and `verify` checks them.

The table follows the schema: the second release of the shop adds a column, which is null in old rows. A record that
cannot be decoded is in the quarantine. Spark and its Java come with pip install "eventbus-log[spark]" duckdb.

``--url memory://`` lands a log that exists only in this process. ``--url kafka://...`` lands JSON from a cluster,
where the registry would be a separate server.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import msgspec

from eventbus import EventBus, log_url
from serdes import Avro
from serdes.avro.marks import AvroType
from spark_sinks import land, verify

ORDERS, COUNTRIES, START = 5_000, ("AT", "DE", "FR"), datetime(2026, 3, 1, tzinfo=UTC)


class Order(msgspec.Struct):
    number: int
    country: str
    cents: int
    placed: datetime


class NewOrder(Order):
    __avro__ = AvroType(name="Order")  # the same record, a release later
    coupon: str | None = None


def order(number: int) -> Order:
    fields = number, COUNTRIES[number % 3], number % 100, START + timedelta(minutes=number)
    return Order(*fields) if number < ORDERS // 2 else NewOrder(*fields, coupon="SPRING" if number % 2 else None)


def query(sql: str) -> duckdb.DuckDBPyRelation:
    rows = duckdb.sql(sql)
    assert rows is not None, "a SELECT has rows"
    return rows


def main(directory: str) -> None:
    url, table = log_url(f"file://{directory}/log"), f"{directory}/warehouse/orders"
    is_avro = not url.startswith("kafka://")  # a log stores its schemas, so the landing finds them in its directory
    bus = EventBus(url, serde=Avro("log") if is_avro else None)
    bus.topic("orders", partitions=2)
    schema = None if is_avro else NewOrder
    with bus.blocking() as b:  # a service in this process, which continues
        for half in (range(ORDERS // 2), range(ORDERS // 2, ORDERS)):
            b.send_many("orders", [order(number) for number in half], key=lambda order: order.country)
            b.send("orders", b"no Avro", key="AT")
            landed = land(url, "orders", table, schema=schema, event_time="placed")
            print(f"{landed.rows} rows landed, {landed.rejected} refused, {landed.lag} to come")
        again = land(url, "orders", table, schema=schema, event_time="placed")
        proof = verify(url, "orders", table, values=True)
    assert again.rows == again.rejected == 0, "the table knows where it ends: nothing is landed twice"

    files = f"read_parquet('{table}/*/*.parquet', union_by_name = true)"  # old files lack the column
    query(f"SELECT country, coupon, count(*), sum(cents) FROM {files} GROUP BY ALL ORDER BY ALL").show()
    counts = "count(DISTINCT number), count(coupon), sum(cents), count(DISTINCT dt)"
    [found] = query(f"SELECT {counts} FROM {files}").fetchall()
    print(*proof.checked, *proof.problems, sep="\n")
    assert found == (ORDERS, ORDERS // 4, sum(number % 100 for number in range(ORDERS)), 4)
    assert proof.ok and (proof.records, proof.rows, proof.rejected) == (ORDERS + 2, ORDERS, 2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(str(Path(sys.argv[1]).absolute()) if sys.argv[1:] and sys.argv[1] != "--url" else folder)
