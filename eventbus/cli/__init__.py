"""The ``eventbus`` command. `main` is the console script; everything else is imported when a command needs it."""

from __future__ import annotations

import os
import sys

from eventbus.version import __version__

TYPE_CHECKING = False  # as in `serdes.lazy`
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_LAST_SECONDS = 0.1
"""For a thread that is about to end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    _open_streams()
    words = sys.argv[1:] if argv is None else list(argv)
    if words in (["--version"], ["-V"]):  # scripts call this often: it needs no parser and no command
        print(f"eventbus {__version__}")
        return 0
    try:
        from eventbus.cli.app import run

        code = run(words)
        if argv is None:
            _end_with_threads(code)
    except KeyboardInterrupt:  # during the import, while an error is printed, or while a thread ends
        print("interrupted", file=sys.stderr)
        return 130
    return code


def _open_streams() -> None:
    """Open the null device in place of closed standard streams, as after ``<&- >&-``.

    Otherwise the next file or socket gets the descriptor 0, 1 or 2, and libuv aborts the process for it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor, which is that of the stream.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _end_with_threads(code: int) -> None:
    """End the process here if a plain function hangs in its thread: the interpreter would wait for it, for ever."""
    invocation = sys.modules.get("eventbus.client.handling.invocation")
    for thread in () if invocation is None else list(invocation.abandoned_threads):
        thread.join(_LAST_SECONDS)
        if thread.is_alive() and not thread.daemon:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
