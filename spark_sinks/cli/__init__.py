"""``eventbus spark``: topics into tables at the command line, one module per command."""

from __future__ import annotations

from importlib import import_module

from eventbus.cli.parser import Subcommands

COMMANDS = ("land", "status", "verify", "replay_quarantine", "compact", "doctor", "warmup")
"""Modules of this package; what is heavy they import when they run."""

EPILOG = """\
  eventbus spark land orders ./warehouse/orders                       once, until it is caught up
  eventbus spark land orders delta:./lake/orders --follow             and on and on, until Ctrl-C
  eventbus spark verify ./warehouse/orders                            each record is there once, and every gap explained

The log goes first, where it is not ./data (or --url): eventbus spark land kafka://localhost:9092 orders ./orders
"""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "spark", help="topics into tables: land, status, verify, replay-quarantine, compact, ...", epilog=EPILOG
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    for name in COMMANDS:
        import_module(f"spark_sinks.cli.{name}").add(actions)
