"""``eventbus dlq``: dead letters at the command line, one module per command."""

from __future__ import annotations

from eventbus.cli.parser import Subcommands, add_actions

COMMANDS = ("list_letters", "show", "stats", "redrive", "edit", "mark", "export")
"""The modules of this package. Each imports heavy modules only when its command runs."""


EPILOG = """\
  eventbus dlq list                                 what fails, how often, since when
  eventbus dlq show 3f2a9c1d07                      the newest letter of a case: error, stack, headers, payload
  eventbus dlq redrive 3f2a9c1d07 --dry-run         what a redrive of the case would do

A letter is named by its place: topic/partition/offset. It stays there; its status is stored separately.
"""


def register(subcommands: Subcommands) -> None:
    modules = [f"dlq.cli.{name}" for name in COMMANDS]
    about = "dead letters: list, show, redrive, edit, park, resolve, ..."
    add_actions(subcommands, "dlq", modules, help=about, epilog=EPILOG)
