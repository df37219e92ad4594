"""The example of a landing on a cluster, and where there is nothing that Spark could read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eventbus.testing import RealKafka
from tests.kafka_fixtures import real

__all__ = ["real"]

EXAMPLE = Path(__file__).parents[3] / "examples" / "27_spark_landing.py"


def run(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), "--url", url]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow  # a broker, a Spark session, and a jar from Maven Central
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_example_lands_from_a_kafka(real: RealKafka, tmp_path: Path) -> None:
    done = run(real.url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "each committed record is in the table or in the quarantine, once" in done.stdout


def test_what_only_this_process_has_is_refused_before_spark_starts(tmp_path: Path) -> None:
    done = run("memory://", tmp_path)
    assert done.returncode == 1
    assert "Spark reads the log from a directory; use file://" in done.stderr
