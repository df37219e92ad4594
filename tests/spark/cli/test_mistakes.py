"""What people get wrong: each answer says what and where, in the words of the command line, without a stack trace.

All of these are found before Spark is started.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventbus import EventBus
from eventbus.types import Record
from serdes import Avro
from spark_sinks import land
from tests.spark.conftest import TestLog
from tests.spark.upkeep.conftest import land_here

pytestmark = pytest.mark.system

MODULES = {
    "broken.py": "def large(orders)\n    return orders\n",
    "raising.py": "raise ValueError('no such setting: SHOP')\n",
    "jobs.py": "import msgspec\nclass Plain: ...\nclass Order(msgspec.Struct):\n    id: int\n",
}


class Order(msgspec.Struct):
    id: int
    customer: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of Avro, the table of another topic, modules with faults."""
    folder = tmp_path_factory.mktemp("mistakes")
    bus = EventBus(f"file://{folder}/data", serde=Avro("log"))
    bus.topic("orders", partitions=2)
    with bus.blocking() as b:
        b.send_many("orders", [Order(number, "ada") for number in range(10)], key=lambda order: str(order.id))
    (folder / "plain").mkdir()
    plain = TestLog(folder / "plain")
    plain.write("orders", [Record(b"k", b"v", (), 0)])
    plain.write("payments", [Record(b"k", b"v", (), 0)])
    land_here(plain.path, str(folder / "there"), value="bytes")
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    (folder / "note.txt").write_text("no table\n")
    return folder


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        pytest.fail("Spark was started for it")

    monkeypatch.setattr("spark_sinks.session.spark.spark_session", start)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)


@pytest.fixture
def in_folder(spark_command: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    before = {path.name for path in folder.iterdir()} - {"__pycache__"}
    monkeypatch.chdir(folder)
    yield spark_command
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == before, "a mistake leaves nothing behind"


LAND = ("land", "./data", "orders")
TO = (*LAND, "./w")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        # the log and its topics
        (("land", "./dta", "orders", "./w"), "LOG './dta': there is no directory"),
        (("land", "./note.txt", "orders", "./w"), "LOG './note.txt': there is no directory"),
        (("land", "./data", "/x.*/", "./w"), "TOPIC /x.*/ matches no topic of ./data; there are orders"),
        (("land", "./data", "/(x/", "./w"), "TOPIC /(x/ is not a regular expression: missing )"),
        (("land", "memory://", "orders", "./w"), "memory:// is not open in this process"),
        (("land", "http://h:9", "orders", "./w"), "Spark reads the log from a directory; use file://"),
        (("land", "fil:///data", "orders", "./w"), "Spark reads the log from a directory; did you mean file://?"),
        (("land", "kafka://", "orders", "./w"), "kafka:// needs a broker: kafka://host:9092"),
        # the table
        (("land", "./plain", "payments", "./there"), "there holds topic 'orders', not 'payments': land it into its"),
        ((*LAND, "./note.txt"), "note.txt/_eventbus/ledger: Not a directory"),
        ((*LAND, "detla:./w"), "TABLE 'detla:./w': there is no kind of table called 'detla'; did you mean delta:?"),
        ((*LAND, "delta:s3://bucket"), "'s3://bucket' names no table in an object store. Write s3://, gs:// or az://"),
        ((*LAND, "iceberg:s3://bucket/w"), "iceberg:s3://bucket/w names no catalog. An object store holds the files"),
        ((*LAND, "oracle://me@host/shop"), "a landing writes PostgreSQL, MySQL, MariaDB and SQLite"),
        ((*LAND, "postgresql://me@host"), "names no database, as in postgresql://me@host/shop#orders"),
        ((*LAND, "postgresql://me:secret@127.0.0.1:1/shop"), "the database is away"),
        ((*LAND, "mysql://me:secret@127.0.0.1:1/shop"), "the database is away"),
        ((*LAND, "sqlite:///nowhere/shop.db"), "sqlite:///nowhere/shop.db"),
        ((*LAND, "iceberg:prod.shop.orders"), "catalog 'prod' cannot be loaded"),
        # its columns
        ((*TO, "--upsert", "id"), "Parquet files are only added to: --upsert needs delta: or a database"),
        ((*LAND, "sqlite:///:memory:", "--upsert", "id"), "sqlite"),
        ((*TO, "--partition-by", "country"), "--partition-by 'country': there is no such column; there are id"),
        ((*TO, "--partition-by", "_offset"), "--partition-by '_offset': this column stays in the files"),
        ((*TO, "--event-time", "placed"), "--event-time 'placed': there is no such column; there are id, customer"),
        ((*TO, "--event-time", "customer"), "--event-time 'customer': this column is string, and no time"),
        # its values
        ((*TO, "--value", "json"), "--value 'json' needs the columns: --schema"),
        ((*TO, "--value", "avro", "--schema", "id long"), "--schema is of JSON values, and --value 'avro'"),
        ((*TO, "--schema", "jobs:Plain"), "jobs.Plain'> names no columns: give a msgspec.Struct type"),
        ((*TO, "--registry", "locahost"), "--registry 'locahost': nothing opens 'locahost'"),
        ((*TO, "--registry", "ftp://registry"), "(there is: file, http, https, log)"),
        # where it begins
        ((*TO, "--starting-offsets", "erliest"), "--starting-offsets 'erliest': write 'earliest', 'latest' or"),
        ((*TO, "--starting-offsets", '{"orders": {"0": '), "is not understood (Input data was truncated)"),
        ((*TO, "--starting-offsets", '{"orders": [1]}'), 'write offsets as {"topic": {"0": 23, "1": -1}}'),
        ((*TO, "--starting-offsets", '{"orders": {"0": -7}}'), "only -2 and -1 have a meaning"),
        ((*TO, "--starting-offsets", '{"payments": {"0": 1}}'), "names what is not there: orders has the partitions"),
        ((*TO, "--starting-offsets", '{"orders": {"7": 1}}'), "names what is not there: orders has the partitions"),
        ((*TO, "--starting-offsets", '{"orders": {"0": 999}}'), "orders has the partitions 0 from 0 to "),
        # what is not there to look at
        (("status", "./nowhere"), "there is no table at"),
        (("status", "./note.txt"), "note.txt"),
        (("status", "./data"), "there is no table at"),
        (("status", "delta:./there"), "there is no table at delta:"),
        (("status", "sqlite:///nowhere.db#orders"), "there is no table at sqlite:///nowhere.db#orders"),
        (("status", "sqlite:///nowhere.db"), "names no table: say it after a #"),
        (("status", "console:"), "console: stores no table"),
        (("verify", "iceberg:./there"), "there is no table at iceberg:"),
        (("compact", "./nowhere"), "there is no table at"),
        (("compact", "console:"), "console: stores no table"),
        (("replay-quarantine", "./nowhere"), "there is no table at"),
        (("verify", "./plain", "payments", "./there"), "is the table of topic 'orders', not of 'payments'"),
    ],
)  # fmt: skip
def test_it_is_said_what_is_wrong_and_where(in_folder: Any, words: tuple[str, ...], told: str) -> None:
    answer = in_folder(*words)
    assert (answer.code, answer.out) == (1, ""), answer
    assert told in answer.err, answer.err
    assert answer.err.startswith("error: "), answer.err
    for never in ("Traceback", "should not happen", "py4j", "SQLSTATE", "secret"):
        assert never not in answer.err, answer.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*TO, "--registy", "log"), "unrecognized arguments: --registy log; did you mean '--registry'?"),
        ((*TO, "--every", "-5s"), "argument --every"),
        ((*TO, "--compression", "zip"), "invalid choice: 'zip'"),
        ((*TO, "--transform", "jobs.py:large"), "write a module and what is in it, as in jobs:large"),
        ((*TO, "--transform", "./jobs.py:large"), "write a module and what is in it, as in jobs:large"),
        ((*TO, "--transform", "jobs"), "write a module and what is in it, as in jobs:name"),
        ((*TO, "--transform", "jobs:larg"), "--transform jobs:larg: module 'jobs' has no attribute 'larg'"),
        ((*TO, "--transform", "broken:large"), "broken raises SyntaxError: expected ':' (broken.py, line 1)"),
        ((*TO, "--transform", "raising:large"), "raising raises ValueError: no such setting: SHOP"),
        ((*TO, "--transform", "nowhere:large"), "No module named 'nowhere'"),
        ((*TO, "--schema", "jobs:Ordre"), "--schema jobs:Ordre: module 'jobs' has no attribute 'Ordre'"),
    ],
)
def test_a_word_that_cannot_be_is_a_usage_error(in_folder: Any, words: tuple[str, ...], told: str) -> None:
    answer = in_folder(*words)
    assert (answer.code, answer.out) == (2, ""), answer
    assert told in answer.err, answer.err
    assert "Traceback" not in answer.err


def test_where_a_table_begins_may_be_mended(folder: Path, in_folder: Any) -> None:
    """An offset beyond the log founds no table: the next try would find it, and be refused for good."""
    assert in_folder(*TO, "--starting-offsets", '{"orders": {"0": 999}}').code == 1
    assert not (folder / "w").exists()


def test_a_registry_that_is_away_is_said(in_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from serdes.errors import SchemaRegistryError

    class Away:
        def versions(self, *_: Any, **__: Any) -> Any:
            raise SchemaRegistryError("http://r:1 did not answer: is it running, and is its address right?")

        def __getattr__(self, name: str) -> Any:
            return self.versions

        def close(self) -> None: ...

    monkeypatch.setattr("spark_sinks.decoding.choose.schema_client", lambda url: Away())
    answer = in_folder(*TO, "--registry", "http://r:1")
    assert answer.code == 1
    assert "the schemas of orders-value cannot be asked for (http://r:1 did not answer" in answer.err
    assert "landing again goes on from here" in answer.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"every": "ten"}, r"every='ten': write seconds, or '500ms'"),
        ({"every": -1}, r"every=-1: write seconds from 0 on"),
        ({"max_offsets_per_trigger": 0}, r"max_offsets_per_trigger=0: a batch needs at least one record"),
        ({"quarantine_limit": 5}, r"quarantine_limit=5 is a share of a batch"),
        ({"compression": "zip"}, r"compression='zip': choose one of zstd"),
        ({"upsert": []}, r"upsert=\[\] names no column"),
        ({"schema": ["id"]}, r"schema=\['id'\] names no columns"),
        ({"schema": int}, r"schema=<class 'int'> names no columns"),
        ({"event_time": "customer"}, r"event_time='customer': this column is string, and no time"),
        ({"to": ""}, r"to= names no directory"),
    ],
)
def test_arguments_of_land(folder: Path, arguments: dict[str, Any], told: str) -> None:
    from eventbus.errors import ConfigError

    with pytest.raises(ConfigError, match=told):
        land(str(folder / "data"), "orders", **{"to": str(folder / "w"), **arguments})
    assert not (folder / "w").exists()


def test_nothing_to_replay_is_no_error(in_folder: Any) -> None:
    answer = in_folder("replay-quarantine", "./plain", "orders", "./there")
    assert answer.code == 0
    assert "nothing is in the quarantine of" in answer.out
