"""Type checkers accept the programs in ``right`` and report each marked line in ``wrong``. Editors complete options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = Path(sys.executable).parent
MARK = "  # wrong"

pytestmark = pytest.mark.system


def marked() -> set[tuple[str, int]]:
    """The file and line of each error to be found. The folder ``right`` has none."""
    return {
        (path.name, number)
        for path in HERE.glob("wrong/*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith(MARK)
    }


@pytest.mark.timeout(400)
def test_pyright_strict_reports_exactly_the_wrong_lines() -> None:
    command = [BIN / "pyright", "--project", HERE, "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found} == marked(), done.stdout


@pytest.mark.timeout(400)
def test_mypy_strict_reports_exactly_the_wrong_lines(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    options = [
        "--strict",
        "--follow-imports=silent",
        "--output=json",
        f"--cache-dir={tmp_path}",
        "--no-warn-unused-ignores",
    ]
    command = [sys.executable, "-m", "mypy", *options, HERE / "right", HERE / "wrong"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"MYPYPATH": str(ROOT)})
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = {(Path(one["file"]).name, one["line"]) for one in found if one["severity"] == "error"}
    assert errors == marked(), done.stdout + done.stderr


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
