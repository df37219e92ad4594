"""Completes command lines in bash, zsh and fish, from the parsers of the commands, by argcomplete (the extra ``cli``).

The shell runs the program with the line in the environment: ``eval "$(register-python-argcomplete eventbus)"``.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from eventbus.cli.parser import Parser, Subcommands


def words_before_cursor() -> list[str]:
    """Return the complete words of the line, without the program's name."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    return line.split()[1:] if line.endswith(" ") else line.split()[1:-1]


def print_completions(parser: Parser, subcommands: Subcommands) -> None:
    """Print the completions where the shell reads them, and exit."""
    families: dict[str, Parser] = getattr(subcommands, "choices", {})
    for family in families.values():
        family.fill_now()  # argcomplete replaces the actions of a parser before the parser is used
    argcomplete: Any = import_module("argcomplete")
    argcomplete.autocomplete(parser)
