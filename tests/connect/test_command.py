"""``eventbus connect``: what it runs, what it says, how it ends."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli
from tests.warm import commands as warm

pytestmark = pytest.mark.system

__all__ = ["cli"]

WORKER = "value.converter=org.apache.kafka.connect.storage.StringConverter\nbootstrap.servers=localhost:9092\n"
SOURCE = "name=lines\nconnector.class=FileStreamSource\ntasks.max=1\nfile=in.txt\ntopic=lines\n"
SINK = "name=out\nconnector.class=FileStreamSink\nfile=out.txt\ntopics=lines\n"
ALL = ("worker.properties", "source.properties", "sink.properties")
URL = ("--url", "file://./data")


@pytest.fixture
def folder(cli: Cli, tmp_path: Path) -> Path:
    for name, text in zip(ALL, (WORKER, SOURCE, SINK), strict=True):
        (tmp_path / name).write_text(text)
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    return tmp_path


def test_once_brings_what_is_there(cli: Cli, folder: Path) -> None:
    done = cli("connect", "standalone", *ALL, "--once", *URL)
    assert done.code == 0, done.err
    assert (folder / "out.txt").read_text() == "one\ntwo\n"
    assert [line.split() for line in done.lines[1:]] == [
        ["lines", "source", "stopped", "2", "0"], ["out", "sink", "stopped", "2", "0"],
    ]  # fmt: skip
    again = cli("connect", "standalone", *ALL, "--once", "--json", *URL)
    assert [row["records"] for row in again.json] == [0, 0]


def test_offsets_are_shown_and_forgotten(cli: Cli, folder: Path) -> None:
    assert cli("connect", "standalone", *ALL[:2], "--once", *URL).code == 0
    [row] = cli("connect", "offsets", "list", "--json", *URL).json
    assert (row["connector"], row["partition"]) == ("lines", '{"filename":"in.txt"}')
    assert '"position":8' in row["offset"]
    wrong = cli("connect", "offsets", "reset", "line", *URL)
    assert wrong.code == 1 and "no offsets of a connector 'line'; did you mean 'lines'?" in wrong.err
    assert "begins again: 1 offset(s) forgotten" in cli("connect", "offsets", "reset", "lines", *URL).out
    assert cli("connect", "offsets", "list", "--json", *URL).json == []
    assert cli("connect", "standalone", *ALL[:2], "--once", "--json", *URL).json[0]["records"] == 2


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (("source.properties", "worker.properties"), "the first file is the worker's"),
        (("worker.properties", "source.properties", "source.properties"), "is given twice"),
        (("worker.properties", "nowhere.properties"), "nowhere.properties: No such file"),
        (("worker.properties",), "the following arguments are required: CONNECTOR"),
    ],
)
def test_what_is_wrong_is_a_matter_of_usage(cli: Cli, folder: Path, files: tuple[str, ...], told: str) -> None:
    for action in ("standalone", "validate"):
        done = cli("connect", action, *files, *URL)
        assert done.code == 2 and told in done.err
    assert not (folder / "data").exists()


def test_validate_names_the_line_and_opens_nothing(cli: Cli, folder: Path) -> None:
    assert cli("connect", "validate", *ALL, *URL).code == 0
    (folder / "source.properties").write_text(SOURCE + "batch.sise=5\n")
    done = cli("connect", "validate", *ALL, *URL)
    assert done.code == 2
    assert "source.properties, line 6: connector FileStreamSource has no setting 'batch.sise'" in done.err
    assert "did you mean 'batch.size'?" in done.err
    assert not (folder / "data").exists()


def test_the_worker_names_the_log(cli: Cli, folder: Path) -> None:
    (folder / "worker.properties").write_text("eventbus.url=file://./mine\n" + WORKER)
    assert cli("connect", "standalone", *ALL[:2], "--once").code == 0
    assert (folder / "mine").is_dir() and not (folder / "data").exists()


def test_when_none_runs_any_more_it_ends_with_the_reason(cli: Cli, folder: Path) -> None:
    (folder / "source.properties").write_text(
        "name=rows\nconnector.class=JdbcSource\nmode=incrementing\ntopic.prefix=x-\nconnection.url=sqlite:///shop.db\n"
        "incrementing.column.name=nr\n"
    )
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    database.close()
    done = cli("connect", "standalone", *ALL[:2], *URL)
    assert done.code == 1
    assert "source.properties, line 6: table 'orders' has no column 'nr'" in done.err
    assert "no connector runs any more" in done.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_runs_until_a_signal(folder: Path, number: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "EVENTBUS_URL"}
    command = [warm.python(), "-m", "eventbus", "connect", "standalone", *ALL, *URL]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("running lines, out on file://./data"):
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "stopped" in out


OWN = """
import os, signal
from eventbus.connect import SourceConnector

class Kills(SourceConnector):
    def __init__(self, context):
        super().__init__(context)
        if context.name == "at-once":
            os.kill(os.getpid(), signal.SIGTERM)

    def start(self, offsets):
        pass

    def poll(self):
        return ()
"""


@pytest.fixture
def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "EVENTBUS_URL"}


def test_a_signal_before_there_is_anything_to_stop_is_a_clean_end(folder: Path, environment: dict[str, str]) -> None:
    (folder / "own.py").write_text(OWN)
    (folder / "source.properties").write_text("name=at-once\nconnector.class=own:Kills\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("eventbus"), "connect", "standalone", *ALL[:2], *URL],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "SIGTERM: stopped before the bus had started\n")


def test_without_sqlalchemy_files_go_on_and_tables_say_what_is_missing(folder: Path) -> None:
    (folder / "table.properties").write_text(
        "name=rows\nconnector.class=JdbcSource\nmode=bulk\nconnection.url=sqlite:///shop.db\n"
    )
    program = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "from eventbus.connect import Connectors\n"
        "Connectors('source.properties')\n"
        "Connectors('table.properties')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert 'a SQL source needs SQLAlchemy: pip install "eventbus-log[sql]"' in done.stderr, done.stderr


ENDLESS = """
from eventbus.connect import SourceConnector, SourceRecord

class Endless(SourceConnector):
    def start(self, offsets):
        print("begun", flush=True)

    def poll(self):
        return [SourceRecord(topic="lines", value="again")]
"""


def test_a_signal_cuts_once_short_and_the_exit_code_says_so(folder: Path, environment: dict[str, str]) -> None:
    (folder / "own.py").write_text(ENDLESS)
    (folder / "source.properties").write_text("name=endless\nconnector.class=own:Endless\n")
    command = [warm.python(), "-m", "eventbus", "connect", "standalone", *ALL[:2], "--once", *URL]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "stopped" in out
