"""``make demo`` shows the same story on every log: its tables, its accounts, its verdict."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from demo import command
from demo.command import next_commands
from demo.places import Places, places_of
from eventbus.backends.masking import shown_url
from eventbus.cli.app import run
from eventbus.testing import RealKafka
from tests.cli.test_demo import skip_bank_and_board
from tests.clients.serving import Served

pytestmark = pytest.mark.system

FLIGHTS = 6_000


class Demo(NamedTuple):
    """Runs the demo in a directory of the test's own."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, url: str | None, *options: str) -> str:
        named = () if url is None else ("--url", url)
        code = command.main(["--quick", "--dir", str(self.folder / "demo"), *named, *options])
        printed = self.capsys.readouterr()
        assert code == 0, printed.out + printed.err
        return printed.out


@pytest.fixture
def demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Demo:
    monkeypatch.setattr(command, "QUICK_FLIGHTS", FLIGHTS)
    monkeypatch.delenv("EVENTBUS_URL", raising=False)
    return Demo(tmp_path, capsys)


def story(out: str) -> list[str]:
    """What is told of flights, transfers and arrivals, and not where it is or how long it took.

    How many transactions were under way when the service was killed is chance: several partitions have one each. The
    names of cases follow from that of the group, which is another one in a log that others use.
    """
    tables, _, rest = out.partition("STEP ")
    verdict = rest[rest.index("CONSERVED") :].partition("try next")[0]
    verdict = verdict.replace("was cancelled in the middle", "was killed in the middle")
    tables = tables.replace("dlq.demo-", "dlq.")
    tables = re.sub(r"^[0-9a-f]{10}(?= +post )|[\d.]+ s\b", "...", tables, flags=re.M)
    tables = re.sub(" +", " ", tables)
    lines = [*tables.splitlines(), *re.sub(r"The [\d,]+ record", "The N record", verdict).splitlines()]
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def on_its_own_log(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Told once: it is the same each time, which is the point."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(command, "QUICK_FLIGHTS", FLIGHTS)
        patch.delenv("EVENTBUS_URL", raising=False)
        assert command.main(["--quick", "--dir", str(tmp_path_factory.mktemp("demo"))]) == 0
    told = story(printed.getvalue())
    assert any(line.startswith("EQUAL") for line in told)
    return told


def test_in_memory(demo: Demo, on_its_own_log: list[str]) -> None:
    assert story(demo("memory://")) == on_its_own_log


def test_in_a_directory_that_others_use(demo: Demo, on_its_own_log: list[str]) -> None:
    url = f"file://{demo.folder}/shared"
    assert run(["topics", "create", "flights", "--url", url]) == 0
    assert run(["topics", "create", "transfers", "--url", url]) == 0
    demo.capsys.readouterr()
    assert story(demo(url)) == on_its_own_log
    assert run(["topics", "list", "--exclude-internal", "--url", url]) == 0
    names = ("arrivals", "board", "checking", "delays", "flights", "savings", "transfers")
    ours = [*(f"demo-{name}" for name in names), "dlq.demo-board-maker"]
    there = ["_dlq_state", "_schemas", *ours, "flights", "retry.demo-board-maker", "transfers"]
    assert demo.capsys.readouterr().out.split() == there


def test_again_and_anew(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flights; tests/cli/test_demo.py runs the bank and the board again."""
    monkeypatch.setattr(command, "QUICK_FLIGHTS", 500)
    skip_bank_and_board(monkeypatch)
    for options, published in (((), 500), ((), 0), (("--fresh",), 500)):
        told = json.loads(demo(f"file://{demo.folder}/shared", "--json", *options))
        assert (told["published"], told["delays_doubled"], told["equal"]) == (published, 0, True)


@pytest.mark.slow  # the served log is the file's, and the client the one of Kafka: both are tried here
def test_on_a_server(demo: Demo, on_its_own_log: list[str]) -> None:
    with Served(demo.folder / "log") as server:
        url = f"kafka://{server.bootstrap}"
        assert story(demo(url)) == on_its_own_log
        for line in next_commands(places_of(".", url), landed=False):
            assert run(line.split()[1:]) == 0, line


@pytest.mark.slow  # examples and tests/kafka prove the client, and the three URLs one another
def test_on_apache_kafka(demo: Demo, on_its_own_log: list[str], real: RealKafka) -> None:
    assert story(demo(real.url)) == on_its_own_log


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_warehouse_of_a_kafka(demo: Demo, real: RealKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads a mirror of the cluster's topic; the second run copies and lands nothing."""
    monkeypatch.setattr(command, "FLIGHTS", FLIGHTS)
    for landed in (FLIGHTS, 0):
        assert command.main(["--json", "--dir", str(demo.folder / "demo"), "--url", real.url]) == 0
        answer: Any = json.loads(demo.capsys.readouterr().out)
        assert (answer["equal"], answer["flights"], answer["landed"]) == (True, FLIGHTS, landed)


def test_a_password_is_not_shown() -> None:
    url = "kafka://h:9092?sasl.username=ada&sasl.password=s3&ssl.key.password=x&acks=1"
    assert shown_url(url) == "kafka://h:9092?sasl.username=ada&sasl.password=***&ssl.key.password=***&acks=1"
    assert "s3" not in " ".join(next_commands(Places(Path(), url), landed=False))
