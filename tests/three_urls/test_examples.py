"""One program, three URLs: what an example prints is the same on memory://, file:// and kafka://.

kafka:// is tested twice: with ``eventbus serve`` and with Apache Kafka. ``make test`` runs every example on memory://
and the `TELLING` ones on the others.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from eventbus.testing import RealKafka
from tests.clients.serving import Served
from tests.three_urls.all_examples import FOLDER, follows_url
from tests.warm import commands as warm

EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if follows_url(path))
ELSEWHERE = {"07_retries_and_order", "21_failover", "27_spark_landing", "28_spark_pipeline"}
"""One plays with a network inside the process, one kills the brokers of a cluster of its own, two are Spark's."""
OF_THE_LOG = ("_schemas", "_dlq_state", "_outbox.", "_scheduled.", "_every.")
"""How their names begin: its registry of schemas, what became of its dead letters, receipts of outboxes."""

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(300)]


class Ran(NamedTuple):
    printed: str
    error: str
    seconds: float


def run_all(url: str, folder: Path, names: Sequence[str]) -> dict[str, Ran]:
    command = [warm.python(), "-W", "error", str(Path(__file__).with_name("all_examples.py")), url, *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return {line["name"]: Ran(line["printed"], line["error"], line["seconds"]) for line in lines}


Selected = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def selected(request: pytest.FixtureRequest) -> Selected:
    """Return the examples that this run compares on a log: in ``make test`` some, with -k perhaps one."""
    names = {item.name for item in request.session.items}
    return lambda log: [name for name in EXAMPLES if f"test_an_example_prints_the_same[{log}-{name}]" in names]


@pytest.fixture(scope="module")
def on_memory(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_all("memory://", tmp_path_factory.mktemp("memory"), EXAMPLES)


@pytest.fixture(scope="module")
def on_file(selected: Selected, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_all("file://./data", tmp_path_factory.mktemp("file"), selected("on_file"))


@pytest.fixture(scope="module")
def on_served(selected: Selected, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ran]]:
    folder = tmp_path_factory.mktemp("served")
    with Served(folder / "log") as server:
        yield run_all(f"kafka://{server.bootstrap}", folder, selected("on_served"))


class OnKafka(NamedTuple):
    examples: dict[str, Ran]
    left: set[str]
    """Topics that were not there before; those of `OF_THE_LOG` are made by whoever uses them first."""


@pytest.fixture(scope="module")
def kafka(selected: Selected, real: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> OnKafka:
    before = topics(real.url)
    examples = run_all(real.url, tmp_path_factory.mktemp("kafka"), sorted({FIRST, *selected("on_kafka")}))
    return OnKafka(examples, topics(real.url) - before)


@pytest.fixture(scope="module")
def on_kafka(kafka: OnKafka) -> dict[str, Ran]:
    return kafka.examples


def topics(url: str) -> set[str]:
    command = [warm.python(), "-m", "eventbus", "topics", "list", "--exclude-internal", "--url", url]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return set(done.stdout.split())


def told(ran: Ran) -> str:
    """What it printed, but for how long something took."""
    assert not ran.error, ran.error
    assert ran.printed
    return re.sub(r"\d+\.\d\d s\b", "some time", ran.printed)


def test_all_examples_go_where_the_url_says() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - {*EXAMPLES} <= ELSEWHERE


FIRST = "01_hello"
TELLING = {FIRST, "15_offsets_in_a_database", "24_retry_and_dead_letters", "25_bank_transfer"}
"""Groups, seeking, retries and transactions. tests/kafka proves what the other examples rest on."""


CASES = [
    pytest.param(log, name, marks=() if name in quick else pytest.mark.slow)
    for log, quick in {"on_file": TELLING, "on_served": set[str](), "on_kafka": TELLING}.items()
    for name in EXAMPLES
]
"""``eventbus serve`` is the log of a file behind the client for Kafka: either half is in the quick tier."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_in_memory(name: str, on_memory: dict[str, Ran]) -> None:
    assert told(on_memory[name])


@pytest.mark.parametrize(("log", "name"), CASES)
def test_an_example_prints_the_same(
    log: str, name: str, on_memory: dict[str, Ran], request: pytest.FixtureRequest
) -> None:
    there: dict[str, Ran] = request.getfixturevalue(log)
    assert told(there[name]) == told(on_memory[name])


def test_nothing_of_an_example_stays_on_a_log_that_others_use(kafka: OnKafka) -> None:
    left = {name for name in kafka.left if not name.startswith(OF_THE_LOG)}
    assert left == {"greetings"}, "the first one's topic is there to be looked at"
