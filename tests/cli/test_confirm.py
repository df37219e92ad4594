"""The question before a change, and Ctrl-C at every moment of a command."""

from __future__ import annotations

import io
import signal
import sys

import anyio
import pytest

from eventbus.cli import app, main
from eventbus.cli.confirm import confirmed
from eventbus.cli.output import Output


class _CtrlC(io.StringIO):
    """A terminal whose user presses Ctrl-C when the question appears."""

    def write(self, text: str) -> int:
        if "(y/n)" in text:
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_ctrl_c_at_the_question_does_not_wait_for_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))

    async def command() -> None:
        confirmed(Output(stderr=_CtrlC()), "Delete all?")
        pytest.fail("the line was read although the user had pressed Ctrl-C")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        anyio.run(command)
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(("typed", "answer"), [("y\n", True), ("YES\n", True), ("n\n", False), ("", False)])
def test_only_yes_is_yes(monkeypatch: pytest.MonkeyPatch, typed: str, answer: bool) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    errors = io.StringIO()
    assert confirmed(Output(stderr=errors), "Delete all?", flag="--force") is answer
    assert ("--force skips the question" in errors.getvalue()) is (typed == "")


def test_ctrl_c_while_an_error_is_printed_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "_complain", interrupted)
    assert main(["no-such-command"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
