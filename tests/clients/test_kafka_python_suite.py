"""kafka-python's own integration tests, which were written against Kafka, against ``eventbus serve``."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients.conftest import AGAINST_KAFKA, or_skip
from tests.clients.jars import ROOT, NotAvailableError

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clients")]

CACHE = ROOT / ".venv" / "clients-python"
FAILS = {
    "test_create_partitions": "it asks for replicas on broker 0, the number of its own brokers; ours is 1",
}
"""Tests of the suite that cannot pass, and why."""
SKIPS = 1 + 2 * sum(importlib.util.find_spec(codec) is None for codec in ("snappy", "lz4", "zstandard"))
"""The tests that it skips: two for each codec whose library is missing, and one for old brokers."""


def distribution() -> Path:
    """The unpacked source distribution of the kafka-python that is installed.

    Raises:
        NotAvailableError: pip could not fetch it.
    """
    name = f"kafka_python-{version('kafka-python')}"
    folder = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
            command += ["--dest", str(CACHE), f"kafka-python=={version('kafka-python')}"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise NotAvailableError(f"pip could not fetch kafka-python's sources: {done.stderr.strip()[-2000:]}")
            shutil.rmtree(CACHE / "partial", ignore_errors=True)
            with tarfile.open(CACHE / f"{name}.tar.gz") as archive:
                archive.extractall(CACHE / "partial", filter="data")
            (CACHE / "partial" / name).rename(folder)
    return folder


class Outcome(NamedTuple):
    passed: list[str]
    failed: list[str]
    skipped: list[str]
    printed: str


def run(folder: Path, report: Path, *which: str) -> Outcome:
    """The suite, or those of its tests that ``which`` names."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.clients.kafka_python_broker", "-p", "no:cacheprovider"]
    command += ["-p", "no:schemathesis", "-p", "no:hypothesispytest", "-p", "no:faker"]  # seconds of imports
    command += ["-q", "--override-ini=addopts=", "-W", "ignore", "--timeout=60", "--show-capture=no"]
    command += [f"--junitxml={report}", *(which or ["test/integration"])]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True)
    outcome = Outcome([], [], [], done.stdout)
    for case in ElementTree.parse(report).iter("testcase"):
        module, name = case.attrib["classname"].split("."), case.attrib["name"]
        path = "/".join(part for part in module if part[0].islower()) + ".py"
        identity = "::".join([path, *(part for part in module if part[0].isupper()), name])
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcome.failed.append(identity)
        elif "skipped" in kinds:
            outcome.skipped.append(identity)
        else:
            outcome.passed.append(identity)
    return outcome


def run_twice(folder: Path, reports: Path, *which: str) -> tuple[Outcome, list[str]]:
    """What came of the first time, and what failed then, is not in `FAILS`, and passed the second time.

    Many of its tests have limits of a few seconds, so what fails is given a second chance by itself.
    """
    first = run(folder, reports / "first.xml", *which)
    again = [test for test in first.failed if test.rpartition("::")[2] not in FAILS]
    if again:
        second = run(folder, reports / "second.xml", *again)
        assert not second.failed, second.printed[-6000:]
    return first, again


def suite() -> Path:
    if AGAINST_KAFKA:
        pytest.skip("it starts servers of its own: eventbus serve")
    return or_skip(distribution)


@pytest.mark.slow  # 15 s; test_clients.py lets kafka-python produce and consume
@pytest.mark.timeout(300)
def test_its_consumers(tmp_path: Path) -> None:
    first, again = run_twice(suite(), tmp_path, "test/integration/test_consumer_integration.py")
    assert len(first.passed) + len(again) >= 16, first.printed[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_integration_suite(tmp_path: Path) -> None:
    first, again = run_twice(suite(), tmp_path)
    failed = {test.rpartition("::")[2] for test in first.failed}
    assert set(FAILS) <= failed, "it passes now: strike it from the list"
    assert len(first.passed) + len(again) >= 59, first.printed[-3000:]
    assert len(first.skipped) == SKIPS, first.skipped
