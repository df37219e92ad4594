"""The command line, in this process and in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventbus.cli import main
from tests.disks import nothing_waits_for_the_disk
from tests.warm import commands as warm

__all__ = ["nothing_waits_for_the_disk"]


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process, in a directory of its own: ``cli("topics", "list", stdin=b"...")``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVENTBUS_URL", raising=False)

    def run(*args: str, stdin: bytes = b"") -> Result:
        file = tmp_path / ".stdin"
        file.write_bytes(stdin)
        capsys.readouterr()
        with file.open() as stream, monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", stream)
            code = main(list(args))
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def orders(cli: Cli) -> Cli:
    """A log in ./data with a topic ``orders`` of three partitions and six records."""
    assert cli("topics", "create", "orders", "--partitions", "3").code == 0
    lines = b"".join(b"key-%d:value %d\n" % (number % 3, number) for number in range(6))
    properties = ("--property", "parse.key=true", "--property", "key.separator=:")
    assert cli("produce", "orders", *properties, stdin=lines).code == 0
    return cli


Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start a command as a process with pipes; whatever still runs at the end of the test is killed.

    It is a fork of `tests.warm`, unless it needs ``preexec_fn``, or an interpreter of its own for its process id.
    """
    started: list[subprocess.Popen[bytes]] = []

    def start(
        *args: str, own_interpreter: bool = False, program: Sequence[str] = ("-m", "eventbus"), **options: Any
    ) -> subprocess.Popen[bytes]:
        python = sys.executable if own_interpreter or "preexec_fn" in options else warm.python()
        environ = {name: value for name, value in os.environ.items() if name != "EVENTBUS_URL"}
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen(
            [python, *program, *args],
            cwd=tmp_path,
            env=environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
