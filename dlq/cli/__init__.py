"""``eventbus dlq``: dead letters at the command line, one module per command."""

from __future__ import annotations

from importlib import import_module

from eventbus.cli.parser import Subcommands

COMMANDS: tuple[str, ...] = ()
"""Modules of this package; what is heavy they import when they run."""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser("dlq", help="dead letters: list, show, redrive, edit, park, resolve, ...")
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    for name in COMMANDS:
        import_module(f"dlq.cli.{name}").add(actions)
