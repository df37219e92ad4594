"""``eventbus outbox``: the outbox of a database at the command line, one module per command."""

from __future__ import annotations

from eventbus.cli.parser import Subcommands, add_actions

COMMANDS = ("status", "list_refused", "release", "relay", "check", "ddl", "adopt")
"""Names of the command modules. They import expensive modules only when they run."""

EPILOG = """\
  eventbus outbox status --database postgresql://me@localhost/shop     what waits, since when, and who publishes it
  eventbus outbox list                                                 what the log refused, and what waits for it
  eventbus outbox relay --url kafka://localhost:9092                   publish, until Ctrl-C

The database is given once for all of them: export EVENTBUS_DATABASE=postgresql://me@localhost/shop
"""


def register(subcommands: Subcommands) -> None:
    modules = [f"outbox.cli.{name}" for name in COMMANDS]
    about = "events that wait in a database: status, list, retry, drop, relay, ..."
    add_actions(subcommands, "outbox", modules, help=about, epilog=EPILOG)
