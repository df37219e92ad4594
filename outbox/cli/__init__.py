"""``eventbus outbox``: the outbox of a database at the command line, one module per command."""

from __future__ import annotations

from importlib import import_module

from eventbus.cli.parser import Subcommands

COMMANDS = ("status", "list_refused", "release", "relay", "check", "ddl")
"""Modules of this package; what is heavy they import when they run."""

EPILOG = """\
  eventbus outbox status --database postgresql://me@localhost/shop     what waits, since when, and who publishes it
  eventbus outbox list                                                 what the log refused, and what waits behind it
  eventbus outbox relay --url kafka://localhost:9092                   publish, until Ctrl-C

The database is given once for all of them: export EVENTBUS_DATABASE=postgresql://me@localhost/shop
"""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "outbox", help="events that wait in a database: status, list, retry, drop, relay, ...", epilog=EPILOG
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    for name in COMMANDS:
        import_module(f"outbox.cli.{name}").add(actions)
