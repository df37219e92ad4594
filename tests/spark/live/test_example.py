"""The example of a landing prints the same on every log: there is nothing in a log that Spark does not come to."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventbus.testing import RealKafka
from tests.clients.serving import Served
from tests.three_urls.all_examples import FOLDER, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


EXAMPLE = FOLDER / "27_spark_landing.py"

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]


def on(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What it prints, in the session of these tests."""
    monkeypatch.setattr(sys, "argv", sys.argv)  # put back at the end
    ran = run(EXAMPLE, url)
    assert not ran["error"], ran["error"]
    return str(ran["printed"])


@pytest.fixture
def printed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """On memory://."""
    return on("memory://", monkeypatch)


def test_the_example_runs_in_memory(printed: str) -> None:
    assert re.search("^each committed record is in the table or in the quarantine, once$", printed, re.M)


@pytest.mark.slow  # the other landings of this folder are from files
def test_the_example_prints_the_same_on_a_file(printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on(f"file://{tmp_path}", monkeypatch) == printed


@pytest.fixture(params=["served", "kafka"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "kafka":
        kafka: RealKafka = request.getfixturevalue("real")
        yield kafka.url
    else:
        with Served(tmp_path / "log") as server:
            yield f"kafka://{server.bootstrap}"


@pytest.mark.slow  # a broker, a session of its own for each landing, and jars of Maven Central
@pytest.mark.timeout(400)
def test_the_example_prints_the_same_on_a_cluster(printed: str, cluster: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE), "--url", cluster]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
