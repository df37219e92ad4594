"""The commands of `tests.warm` behave as processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import commands as warm

pytestmark = pytest.mark.system


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([warm.python(), *arguments], cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_program_gets_its_arguments_files_and_directory_and_gives_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    program = "import os, sys, beside\nprint(__name__, sys.argv, os.getcwd(), beside.NAME, input())\nsys.exit(7)\n"
    (tmp_path / "program.py").write_text(program)
    outcomes: set[tuple[str, str, int]] = set()
    for python in (warm.python(), sys.executable):
        command = [python, "program.py", "--url", "x y"]
        done = subprocess.run(command, cwd=tmp_path, input="line\n", capture_output=True, text=True)
        outcomes.add((done.stdout, done.stderr, done.returncode))
    assert outcomes == {(f"__main__ ['program.py', '--url', 'x y'] {tmp_path} beside line\n", "", 7)}


def test_an_option_of_the_interpreter_gets_an_interpreter_of_its_own(tmp_path: Path) -> None:
    out, _ = start("-X", "dev", "-c", "import sys; print(sys.flags.dev_mode)", folder=tmp_path).communicate()
    assert out == "True\n"
    _, error = start("-W", "error", "-c", "import warnings; warnings.warn('old')", folder=tmp_path).communicate()
    assert error.endswith("UserWarning: old\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_program_and_is_how_it_ended(number: signal.Signals, tmp_path: Path) -> None:
    process = start("-c", "import time; print('ready', flush=True); time.sleep(60)", folder=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate()[0] == "", "the fork has closed its end of the pipe"
    assert process.returncode == -number


def test_a_handled_signal_is_not_the_end(tmp_path: Path) -> None:
    program = (
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nprint('ready')\nsignal.pause()"
    )
    process = start("-c", program, folder=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait() == 3
    process.communicate()
