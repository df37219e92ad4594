"""Type checkers accept the pages, the examples and the programs in ``right``, and report the marked lines in ``wrong``.

Editors complete options. One process of each type checker reads all programs: most of its time goes into our packages.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.typing.pages import write_blocks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = Path(sys.executable).parent
MARK = "  # wrong"


def marked() -> set[tuple[str, int]]:
    """The file and line of each error to be found. The folder ``right`` has none."""
    return {
        (path.name, number)
        for path in HERE.glob("wrong/*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith(MARK)
    }


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of ``right`` and ``wrong``, the examples, and the blocks of all pages, in one folder."""
    folder = tmp_path_factory.mktemp("programs")
    write_blocks(folder)
    for path in (*HERE.glob("right/*.py"), *HERE.glob("wrong/*.py"), *ROOT.glob("examples/*.py")):
        shutil.copy(path, folder)
    return folder


AWAIT = re.compile("outside( of)? async function|only within async function")
"""The error of a block with ``await`` at its top level, which the pages may have."""


def found(errors: Iterator[tuple[str, int, str]]) -> dict[tuple[str, int], str]:
    """Return the errors by file and line."""
    return {(file, line): text for file, line, text in errors if not AWAIT.search(text)}


@pytest.mark.system
@pytest.mark.timeout(400)
def test_pyright_strict_reports_exactly_the_wrong_lines(programs: Path) -> None:
    settings = json.loads((HERE / "pyrightconfig.json").read_text())
    settings |= {"include": ["."], "extraPaths": [str(ROOT)]}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [BIN / "pyright", "--project", programs, "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    rows = json.loads(done.stdout)["generalDiagnostics"]
    errors = found((Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"]) for one in rows)
    assert errors.keys() == marked(), {place: errors.get(place) for place in errors.keys() ^ marked()}


@pytest.mark.slow  # mypy reads all of eventbus: 25 s of CPU
@pytest.mark.timeout(400)
def test_mypy_strict_reports_exactly_the_wrong_lines(programs: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    options = [
        "--strict",
        "--follow-imports=silent",
        "--output=json",
        f"--cache-dir={tmp_path}",
        "--no-warn-unused-ignores",
        "--disable-error-code=import-untyped",  # a library without annotations is not the page's fault
        "--disable-error-code=top-level-await",
    ]
    command = [sys.executable, "-m", "mypy", *options, *sorted(programs.glob("*.py"))]
    environment = {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=programs, env=environment)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = found((one["file"], one["line"], one["message"]) for one in rows if one["severity"] == "error")
    assert errors.keys() == marked(), {place: errors.get(place) for place in errors.keys() ^ marked()}


COMPLETIONS = {
    'bus.consumer("orders", |)': ["group", "concurrency", "order", "retry", "dead_letter", "exactly_once", "timeout"],
    'bus.consumer("orders", order="|")': ["partition", "key", "none", "global"],
    'bus.producer("orders", |)': ["key", "linger_ms", "compression_type", "partitioner"],
    'EventBus("memory://", |)': ["service", "linger_ms", "fsync", "num_partitions", "security_protocol", "serdes"],
    'bus.new_consumer("orders", |)': ["group", "value", "start", "fetch_min_bytes", "on_assigned"],
    "bus.new_producer(|)": ["transactional_id", "linger_ms", "acks", "interceptors"],
    'bus.topic("orders", |)': ["partitions", "configs", "value"],
}
"""A call with the cursor at ``|``, and names that the editor's list must hold."""


@pytest.mark.system
@pytest.mark.timeout(400)
def test_an_editor_completes_the_options_of_the_most_used_calls() -> None:
    lines = ["from eventbus import EventBus", 'bus = EventBus("memory://")', *COMPLETIONS]
    with language_server() as server:
        server.notify("textDocument/didOpen", textDocument={
            "uri": (HERE / "edited.py").as_uri(), "languageId": "python", "version": 1,
            "text": "\n".join(line.replace("|", "") for line in lines),
        })  # fmt: skip
        for number, line in enumerate(lines[2:], 2):
            position = {"line": number, "character": line.index("|")}
            answer = server.request("textDocument/completion", position=position, textDocument={
                "uri": (HERE / "edited.py").as_uri()
            })  # fmt: skip
            offered = {item["label"].rstrip("=").strip('"') for item in answer["items"]}
            missing = [name for name in COMPLETIONS[line] if name not in offered]
            assert not missing, f"{line}: the list lacks {missing}: {sorted(offered)[:60]}"


class LanguageServer:
    """JSON-RPC with the server's standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._id = 0

    def notify(self, method: str, **params: Any) -> None:
        self._write({"method": method, "params": params})

    def request(self, method: str, **params: Any) -> Any:
        self._id += 1
        self._write({"id": self._id, "method": method, "params": params})
        while True:
            message = self._read()
            if "method" in message and "id" in message:  # the server's own requests, as for its settings
                items = message.get("params", {}).get("items", ())
                self._write({"id": message["id"], "result": [{} for _ in items]})
            elif message.get("id") == self._id:
                return message["result"]

    def _write(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while (line := self._process.stdout.readline().strip()) or not length:
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return json.loads(self._process.stdout.read(length))


@contextmanager
def language_server() -> Iterator[LanguageServer]:
    command = [BIN / "pyright-langserver", "--stdio"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE)
    try:
        server = LanguageServer(process)
        folder = {"uri": HERE.as_uri(), "name": "typing"}
        server.request("initialize", processId=None, rootUri=HERE.as_uri(), capabilities={}, workspaceFolders=[folder])
        server.notify("initialized")
        yield server
    finally:
        process.kill()
        process.communicate()
