"""``eventbus mirror``: what it takes, what it prints, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventbus.cli import main
from tests.warm import commands as warm

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in a directory with a log ./data that holds a topic of two partitions and six records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVENTBUS_URL", raising=False)
    lines = tmp_path / "lines"
    lines.write_text("".join(f"key-{number % 3}:value {number}\n" for number in range(6)))

    def run(*args: str) -> tuple[int, str, str]:
        with lines.open() as stream, monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", stream)
            code = main(list(args))
        out, err = capsys.readouterr()
        return code, out, err

    assert run("topics", "create", "orders", "--partitions", "2", "--config", "retention.ms=77000000000")[0] == 0
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    assert run("produce", "orders", *keyed)[0] == 0
    assert run("consume", "orders", "--group", "billing", "--from-beginning", "--max-messages", "6")[0] == 0
    return run


@pytest.mark.system
def test_a_plan_a_copy_and_a_comparison(cli: Cli) -> None:
    code, out, _ = cli("mirror", "data", "copy", "--dry-run")
    assert (code, out.splitlines()[1].split()) == (0, ["orders", "create", "2", "retention.ms=77000000000"])
    code, out, err = cli("mirror", "data", "copy", "--verify")
    assert code == 0, err
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["TOPIC", "PARTITION", "COPIED", "LAG", "COMPARED", "DIGEST"]
    assert sum(int(row[2]) for row in rows[1:3]) == sum(int(row[4]) for row in rows[1:3]) == 6
    assert rows[-1] == ["billing", "2", "translated"]
    code, out, _ = cli("mirror", "data", "copy", "--json", "--verify")
    found = json.loads(out)
    assert (code, found["copied"], found["problems"]) == (0, 0, {})
    assert sum(check["records"] for check in found["checks"]) == 6
    code, out, _ = cli("groups", "describe", "billing", "--url", "file://copy")
    assert "orders" in out


@pytest.mark.system
def test_a_difference_is_exit_code_1(cli: Cli) -> None:
    assert cli("mirror", "./data", "./copy")[0] == 0
    assert cli("produce", "orders", "--url", "file://./copy")[0] == 0
    assert cli("produce", "orders")[0] == 0
    assert cli("mirror", "./data", "./copy")[0] == 0
    code, out, err = cli("mirror", "./data", "./copy", "--verify-only")
    assert code == 1
    assert "DIFFERENT" in out
    assert "is not a copy: another client wrote it" in err


def test_what_is_refused_is_exit_code_1_with_a_reason(cli: Cli) -> None:
    assert cli("mirror", "data", "copy")[0] == 0
    code, _, err = cli("mirror", "data", "copy", "--name", "another")
    assert (code, "that this mirror did not write" in err) == (1, True)
    code, _, err = cli("mirror", "data", "copy", "--name", "another", "--dry-run")
    assert (code, "that this mirror did not write" in err) == (1, True)
    assert cli("mirror", "data", "data")[0] == 1
    assert cli("mirror", "data", "copy", "--follow", "--dry-run")[0] == 2
    assert cli("mirror", "data", "copy", "--compression", "zip")[0] == 2
    assert cli("mirror", "data")[0] == 2


@pytest.mark.system
def test_it_follows_until_it_is_interrupted(cli: Cli, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "EVENTBUS_URL"}
    process = subprocess.Popen(
        [warm.python(), "-m", "eventbus", "mirror", "data", "copy", "--follow", "--verify"],
        cwd=tmp_path, env=environ | {"PYTHONUNBUFFERED": "1"}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "6 record(s) copied, all there is\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert "DIFFERENT" not in out
    assert "orders" in out


def test_a_mistyped_log_is_refused_and_none_is_made(cli: Cli, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    code, _, err = cli("mirror", "dta", "copy")
    assert (code, "there is no log to mirror at file://dta (no such directory)" in err) == (1, True)
    for wrong in ("localhost", "localhost:9O92", "one,two:9092"):
        code, _, err = cli("mirror", "data", wrong)
        assert (code, f"a directory of that name is ./{wrong}" in err) == (2, True)
    assert cli("mirror", "data", "copy", "--dry-run")[0] == 0
    code, _, err = cli("mirror", "data", "copy", "--verify-only")
    assert (code, "there is no log to compare at file://copy" in err) == (1, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_nothing_to_mirror_is_said(cli: Cli) -> None:
    code, _, err = cli("mirror", "data", "copy", "--pattern", "invoices.*")
    assert (code, "no topic of the source is chosen" in err) == (0, True)
