"""The ``eventbus`` command. `main` is the console script; everything else is imported when a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    from eventbus.cli.app import run

    return run(sys.argv[1:] if argv is None else list(argv))
