"""Reads of stdin that Ctrl-C ends, among them the question before a change that cannot be undone."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from eventbus.cli.output import Output, printable


def confirmed(out: Output, question: str, *, flag: str = "--yes") -> bool:
    """Ask on stderr and return whether the answer is yes; the end of stdin is a no. ``flag`` skips the question."""
    # The handler comes before the question: while an event loop runs, its own handler only cancels the task, which
    # notices when the line has been read. A Ctrl-C that answers the question at once would wait for Enter.
    with interruptible():
        print(printable(f"{question} (y/n) "), end="", file=out.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() in ("y", "yes"):
        return True
    out.note("Nothing was changed." if answer else f"No answer. Nothing was changed. {flag} skips the question.")
    return False


@contextmanager
def interruptible() -> Generator[None]:
    """Let SIGINT raise KeyboardInterrupt in this block, for a read of stdin inside an event loop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
