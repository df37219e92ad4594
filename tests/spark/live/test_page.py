"""docs/how-to/spark.md, from its top to its end, in the session of these tests: every block but those for a cluster.

`tests/test_readme.py` runs pages in processes of their own, where each command would start a Spark of its own; it
leaves these blocks to us.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.cli.app import run as run_command_line
from tests.named import find_page
from tests.test_readme import Block, Command, blocks_of, commands_of, missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]
PAGE = find_page("spark.md")
OURS = "tests/spark/live runs all of this page"


def run_python(block: Block, folder: Path) -> None:
    """In this process, where the session is; a file with a name is saved for those who run it."""
    import ast
    import types

    first = block.body.partition("\n")[0]
    if first.startswith("# ") and first.endswith(".py"):
        (folder / first[2:]).write_text(block.body, "utf-8")
        return
    name = f"page_line_{block.line}"
    module = types.ModuleType(name)
    sys.modules[name] = module  # types are looked up where they say they are
    # Spark's JVM and its Python workers run in the directory where the session was started.
    body = block.body.replace('"./data"', repr(str(folder / "data"))).replace('"./own/', f'"{folder}/own/')
    code = compile(body, f"{PAGE.name}:{block.line}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result: Any = eval(code, module.__dict__)
    if asyncio.iscoroutine(result):
        asyncio.run(result)


def run_command(command: Command, where: str) -> None:
    words = shlex.split(command.text)
    if words[0] == "eventbus" and "|" not in words:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = run_command_line(words[1:])
        printed = out.getvalue()
    else:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command.text],
            env={**_environment(), "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        code, printed = done.returncode, done.stdout
    assert code == 0, f"{where}: exit code {code}\n{printed}"
    assert missing(command.shown, printed) == [], f"{where} printed\n{printed}"


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}


@pytest.mark.timeout(300)
def test_the_page_about_spark(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVENTBUS_URL", raising=False)
    run = 0
    for block in blocks_of(PAGE.read_text("utf-8")):
        if block.mark.startswith("not run:") and OURS not in block.mark:
            continue
        run += OURS in block.mark
        if block.kind == "python":
            run_python(block, tmp_path)
        else:
            for command in commands_of(block):
                run_command(command, f"line {block.line}: $ {command.text}")
    assert run > 4, "the page says which blocks are ours"
