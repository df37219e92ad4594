"""``eventbus spark``: words, options, what is shown, exit codes. The engine of a landing is stood in for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventbus.errors import ConfigError, SerializationError
from eventbus.types import Record
from spark_sinks.cli.choosing import as_options
from spark_sinks.landing import LandOptions, LandReport
from spark_sinks.running import LandProgress
from tests.spark.conftest import TestLog
from tests.spark.upkeep.conftest import land_here

pytestmark = pytest.mark.system

ORDERS = [Record(b"k", b'{"id": %d}' % number, (), 1_700_000_000_000) for number in range(4)]
BAD = Record(b"k", b"no JSON", (), 1_700_000_000_000)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `land` was called with; it answers with a report, and calls ``during`` meanwhile."""

    class Engine:
        def __init__(self) -> None:
            self.called: dict[str, Any] = {}
            self.during: Any = None
            self.rejected = self.lag = 0

        def __call__(self, url: str, topics: str, to: str, **options: Any) -> LandReport:
            self.called = {"url": url, "topics": topics, "to": to, **options}
            if self.during is not None:
                self.during(options)
            return LandReport(topics, to, 10, self.rejected, 1, 1, {0: 10}, self.lag, 1.25)

    found = Engine()
    monkeypatch.setattr("spark_sinks.landing.land", found)
    monkeypatch.setattr("spark_sinks.landing.land_many", lambda *args, **options: {"topic": found(*args, **options)})
    return found


# -- which words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (("orders", "./w"), ("file://./data", "orders", "./w")),
        (("./log", "orders", "./w"), ("./log", "orders", "./w")),
        (("localhost:9092", "orders", "delta:./w"), ("kafka://localhost:9092", "orders", "delta:./w")),
        (("kafka://a:1,b:2", "/or.*/", "./{topic}"), ("kafka://a:1,b:2", "/or.*/", "./{topic}")),
        (("orders,payments", "./w", "--url", "/log"), ("/log", "orders,payments", "./w")),
        (("orders", "./w", "--bootstrap-server", "h:9"), ("kafka://h:9", "orders", "./w")),
    ],
)
def test_the_log_may_be_left_out(
    spark_command: Any, engine: Any, words: tuple[str, ...], place: tuple[str, ...]
) -> None:
    assert spark_command("land", *words).code == 0
    assert tuple(engine.called[name] for name in ("url", "topics", "to")) == place


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "which one?"),
        (("lend",), "invalid choice: 'lend'"),
        (("land",), "it takes the words [LOG] TOPIC TABLE, and there are none"),
        (("land", "orders"), "and there is 1, as in: eventbus spark land orders ./warehouse/orders"),
        (("land", "a", "b", "c", "d"), "and there are 4"),
        (("land", "./data", "orders"), "'./data' is where the topic belongs"),
        (("land", "kafka://h:1", "or/ders", "x"), "'or/ders' is where the topic belongs"),
        (("land", "orders", ""), "the table's name is empty"),
        (("land", "orders", "./w", "--value", "avor"), "invalid choice: 'avor'"),
        (("land", "orders", "./w", "--every", "10x"), "'10x': write seconds, or '500ms', '10s', '5m', '1h'"),
        (("land", "orders", "./w", "--quarantine-limit", "200%"), "'200%' is not a share"),
        (("land", "orders", "./w", "--max-offsets-per-trigger", "0"), "0 is less than 1"),
        (("land", "orders", "./w", "--partition_by", "dt"), "did you mean '--partition-by'?"),
        (("land", "orders", "./w", "--transform", "json:nothing"), "--transform json:nothing: module 'json' has no"),
        (("land", "orders", "./w", "--transform", "json:__name__"), "--transform json:__name__ is no function"),
        (("land", "orders", "./w", "--schema", "nomodule:Order"), "--schema nomodule:Order: No module named"),
        (("status",), "it takes the words [[LOG] TOPIC] TABLE, and there are none"),
        (("status", "./w", "--watch", "0"), "--watch takes seconds"),
        (("compact",), "the following arguments are required: TABLE"),
        (("compact", "./w", "--before", "2026-01-01", "--all"), "not allowed with"),
    ],
)
def test_a_wrong_word_is_an_error_that_says_the_right_one(
    spark_command: Any, words: tuple[str, ...], told: str
) -> None:
    answer = spark_command(*words)
    assert answer.code == 2, answer
    assert told in answer.err
    assert answer.out == ""


def test_what_is_not_there_is_said(spark_command: Any, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", ORDERS)
    land_here(log.path, str(tmp_path / "w"), value="bytes")
    for words, told in (
        (("status", "./nowhere"), "there is no table at"),
        (("status", "payments", "./w"), "is the table of topic 'orders', not of 'payments'"),
        (("verify", "./w", "--url", "./elsewhere"), "LOG './elsewhere': there is no directory"),
        (("status", "detla:./w"), "TABLE 'detla:./w': there is no kind of table called 'detla'; did you mean delta:?"),
        (("compact", "./w", "--before", "yesterday"), "--before 'yesterday': the table is split by day"),
        (("compact", "./w", "--min-files", "1"), "--min-files 1: one file is not made fewer"),
    ):
        answer = spark_command(*words)
        assert (answer.code, answer.out) == (1, ""), (words, answer)
        assert told in answer.err, (words, answer)


# -- land --------------------------------------------------------------------------------------------------------------


def test_options_reach_the_engine(spark_command: Any, engine: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import msgspec\nclass Order(msgspec.Struct):\n    id: int\ndef f(df): return df\n"
    )
    answer = spark_command(
        "land", "orders", "./w", "--schema", "mine:Order", "--transform", "mine:f", "--partition-by", "dt, country",
        "--upsert", "id", "--every", "500ms", "--quarantine-limit", "5%", "--no-quarantine", "--skip-lost",
        "--on-incompatible", "new-column", "--registry", "log", "--starting-offsets", "latest",
        "--max-offsets-per-trigger", "7",
        "--key", "text",
    )  # fmt: skip
    assert answer.code == 0, answer
    called = engine.called
    assert called["schema"].__name__ == "Order"
    assert callable(called["transform"])
    expected = {
        "partition_by": ("dt", "country"), "upsert": ("id",), "every": "500ms", "quarantine_limit": 0.05,
        "quarantine": False, "fail_on_data_loss": False, "on_incompatible": "new_column", "registry": "log",
        "starting_offsets": "latest", "max_offsets_per_trigger": 7, "key": "text", "value": "auto",
    }  # fmt: skip
    assert {name: called[name] for name in expected} == expected


def test_the_engine_has_all_of_the_options(spark_command: Any, engine: Any) -> None:
    """What the stand-in takes, the real one takes."""
    spark_command("land", "orders", "./w")
    assert engine.called.keys() - {"url", "topics", "to"} <= LandOptions.__annotations__.keys()


def test_follow_goes_on_and_every_means_it(spark_command: Any, engine: Any) -> None:
    for words, every in (((), None), (("--follow",), "5s"), (("--every", "1m"), "1m"), (("-f", "--every", "2"), "2")):
        spark_command("land", "orders", "./w", *words)
        assert engine.called["every"] == every


def test_a_summary_at_the_end(spark_command: Any, engine: Any) -> None:
    engine.rejected = 3
    answer = spark_command("land", "orders", "./w")
    assert answer.code == 0
    assert answer.out.splitlines()[0].split() == [
        "TOPIC", "ROWS", "REFUSED", "FILES", "BATCHES", "BEHIND", "SECONDS", "TABLE",
    ]  # fmt: skip
    assert answer.out.splitlines()[1].split() == ["orders", "10", "3", "1", "1", "0", "1.2", "./w"]
    assert "eventbus spark replay-quarantine orders ./w" in answer.err


def test_json_is_one_list_and_a_line_for_each_batch_that_follows(spark_command: Any, engine: Any) -> None:
    [document] = spark_command("land", "orders", "./w", "--json").out.splitlines()
    assert json.loads(document)[0]["rows"] == 10
    engine.during = lambda options: options["progress"](LandProgress("orders", 4, 10, 1, 1, 0, 5, 5, {0: 5}))
    batch, document = spark_command("land", "orders", "./w", "--json", "--follow").out.splitlines()
    assert json.loads(batch)["lag"] == 5
    assert json.loads(document)[0]["topic"] == "orders"


@pytest.mark.parametrize(("follow", "lag", "code"), [((), 5, 130), ((), 0, 0), (("--follow",), 5, 0)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_batch(
    spark_command: Any, engine: Any, follow: tuple[str, ...], lag: int, code: int, number: int
) -> None:
    def during(options: dict[str, Any]) -> None:
        os.kill(os.getpid(), number)
        assert options["stop"].is_set()

    engine.during, engine.lag = during, lag
    before = signal.getsignal(number)
    answer = spark_command("land", "orders", "./w", *follow)
    assert answer.code == code
    assert "finishing the batch that runs" in answer.err
    assert "orders" in answer.out
    assert signal.getsignal(number) == before


def test_the_second_signal_ends_it_at_once(spark_command: Any, engine: Any) -> None:
    def during(options: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    engine.during = during
    assert spark_command("land", "orders", "./w").code == 130


def test_errors_speak_of_options(spark_command: Any, engine: Any) -> None:
    def during(options: dict[str, Any]) -> None:
        raise ConfigError("partition_by='dtt': there is no such column; pass the same partition_by=, or not")

    engine.during = during
    answer = spark_command("land", "orders", "./w")
    assert answer.code == 1
    assert answer.err == (
        "error: --partition-by 'dtt': there is no such column; pass the same --partition-by, or not\n"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("schema= is of JSON values", "--schema is of JSON values"),
        ("to='x': no", "TABLE 'x': no"),
        ("quarantine=False", "--no-quarantine"),
        ("fail_on_data_loss=False passes over", "--skip-lost passes over"),
        ("upsert=[]", "no --upsert"),
        ("a_value=3 and values=True", "a_value=3 and --values True"),
    ],
)
def test_arguments_become_options(text: str, told: str) -> None:
    assert as_options(text) == told


# -- tables that are there ---------------------------------------------------------------------------------------------


def test_status(spark_command: Any, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", [*ORDERS[:2], BAD])
    land_here(log.path, str(tmp_path / "w"), schema=_order())
    log.write("orders", ORDERS)
    answer = spark_command("status", "./w", "--columns")
    assert answer.code == 0, answer
    for told in ("2 landed", "4 offsets, the oldest for", "1 in all, 1 in the quarantine", "PARTITION", "timestamp["):
        assert told in answer.out
    found = json.loads(spark_command("status", "./data", "orders", "./w", "--json").out)
    assert (found["lag"], found["quarantined"], found["files"]) == (4, 1, 1)
    assert found["partitions"][0]["landed"] == 3


def test_verify_says_good_or_what_is_wrong(spark_command: Any, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", [*ORDERS, BAD])
    table = tmp_path / "w"
    land_here(log.path, str(table), schema=_order())
    answer = spark_command("verify", "./w")
    assert answer.code == 0, answer
    assert "good: each committed record is in the table or in the quarantine, once" in answer.out
    assert "4 rows have the values that the log has" in spark_command("verify", "./w", "--values").out
    next(table.rglob("part-*.parquet")).unlink()
    answer = spark_command("verify", "./w")
    assert answer.code == 1
    assert (
        "! orders-0: 4 missing: committed in the log, and in neither the table nor the quarantine: 0..3" in answer.out
    )
    found = json.loads(spark_command("verify", "./w", "--json").out)
    assert not found["ok"]
    assert found["partitions"][0]["missing"] == {"count": 4, "ranges": [[0, 3]]}


def test_several_tables_at_once(spark_command: Any, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", ORDERS)
    log.write("payments", ORDERS)
    land_here(log.path, str(tmp_path / "w" / "orders"), value="bytes")
    answer = spark_command("verify", "orders,payments", "./w")
    assert answer.code == 1
    assert "good: each" in answer.out
    assert "there is no table at" in answer.err


def test_replay_says_what_stays_and_why(spark_command: Any, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", [*ORDERS, BAD])
    land_here(log.path, str(tmp_path / "w"), schema=_order())
    answer = spark_command("replay-quarantine", "./w", "--dry-run")
    assert answer.code == 1
    assert "0 of 1 record would be landed, 1 stay in the quarantine" in answer.out
    assert "orders-0 at offset 4" in answer.out
    found = json.loads(spark_command("replay-quarantine", "./w", "--json").out)
    assert (found["waiting"], found["landed"], found["committed"]) == (1, 0, False)


def test_compact(spark_command: Any, log: TestLog, tmp_path: Path) -> None:
    for number in range(3):
        log.write("orders", ORDERS[number : number + 1])
        land_here(log.path, str(tmp_path / "w"), schema=_order())
    answer = spark_command("compact", "./w", "--before", "2023-01-01")
    assert (answer.code, answer.out) == (0, "nothing to do before 2023-01-01: no partition has 2 files or more\n")
    assert "3 files before 20" in spark_command("compact", "./w").out
    assert spark_command("verify", "./w", "--values").code == 0


def test_doctor_says_how_this_machine_is(spark_command: Any) -> None:
    answer = spark_command("doctor")
    assert answer.code in (0, 1)
    assert "pyspark" in answer.out
    names = {check["name"] for check in json.loads(spark_command("doctor", "--json").out)}
    assert {"pyspark", "Java", "memory"} <= names


def test_warmup_says_what_it_made(spark_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_sinks.session.warmup import Warmup

    monkeypatch.setattr("spark_sinks.session.warmup.warmup", lambda: Warmup("/cache/x", 3 << 20, 61.0, "Java 25"))
    assert spark_command("warmup").out == "/cache/x (3.0 MiB, Java 25) made in 61 s\n"


def test_the_command_line_is_quick_and_needs_no_library() -> None:
    """Neither pyspark nor pyarrow is imported for a wrong word, or for help."""
    code = (
        "import sys\nfrom eventbus.cli.app import run\n"
        "assert run(['spark', 'land', 'orders']) == 2 and run(['spark', 'land', '--help']) == 0\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'deltalake', 'pyiceberg', 'sqlalchemy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_refusal_of_the_engine_is_an_error_in_a_line(spark_command: Any, engine: Any) -> None:
    def during(options: dict[str, Any]) -> None:
        raise SerializationError("1 record does not fit, the first in orders-0 at offset 0: malformed")

    engine.during = during
    answer = spark_command("land", "orders", "./w")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: 1 record does not fit")


def _order() -> Any:
    import pyarrow as pa

    return pa.schema([("id", pa.int64())])
