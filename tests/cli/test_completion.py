"""Completion of command lines, as a shell asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Spawn

pytestmark = pytest.mark.system
pytest.importorskip("argcomplete")


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("eventbus top", ["topics"]),
        ("eventbus topics cr", ["create"]),
        ("eventbus topics create --par", ["--partitions"]),
        ("eventbus dlq red", ["redrive"]),
        ("eventbus dlq redrive --wh", ["--whole-topic"]),
        ("eventbus produce orders --acks ", ["0", "1", "all", "-1"]),
    ],
)
def test_a_shell_completes_commands_options_and_values(
    spawn: Spawn, line: str, completions: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    environ = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line,
        "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
    }  # fmt: skip
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert spawn().wait(timeout=60) == 0
    assert [word.strip() for word in answer.read_text().splitlines()] == completions
