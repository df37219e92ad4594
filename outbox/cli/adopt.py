"""``eventbus outbox adopt``: publish from a database that was restored or cloned."""

from __future__ import annotations

import argparse
import secrets
from typing import TYPE_CHECKING

from eventbus.cli.confirm import confirmed
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from eventbus.errors import ConfigError
from outbox.cli.database import add_database, open_outbox

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from outbox.tables import OutboxTables

_DESCRIPTION = """\
A relay publishes nothing if its database does not match the log: the database was restored from a backup, or it is a
clone of the one that publishes. This gives the outbox another id, and relays publish what is in its table. Events that
were published since the backup was made, and are in the table again, are published again: delete their rows before.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "adopt",
        help="publish from a database that was restored or cloned",
        description=_DESCRIPTION,
        epilog="  eventbus outbox adopt --database postgresql://me@localhost/shop",
    )
    add_database(parser)
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.set_defaults(run=adopt)


async def adopt(args: argparse.Namespace) -> int:
    out = Output.of(args)
    async with open_outbox(args) as opened:
        tables = opened.outbox.tables
        waiting = await opened.database.run(_check, tables)
        question = f"Publish from {opened.place} from now on, beginning with {waiting:,} event(s) in its table?"
        if not args.yes and not confirmed(out, question):
            return 1
        await opened.database.run(_adopt, tables)
        out.answer({"waiting": waiting}, f"outbox {tables.name!r} is adopted, {waiting:,} event(s) wait")
        return 0


def _check(connection: Connection, tables: OutboxTables) -> int:
    """Return how many events wait. Raises ConfigError while a relay is alive: it would keep using the old id."""
    from sqlalchemy import func, select

    from outbox.database import now_sql
    from outbox.relay import hosts
    from outbox.relay.shard_leases import ShardLeases

    alive = ShardLeases(tables, 0, connection.dialect.name, now_sql).alive(connection, hosts.is_gone)
    if alive:
        raise ConfigError(
            f"The relay {alive[0].host} publishes the outbox {tables.name!r}, so the database matches the log, or "
            "the relay has not noticed yet. Stop the relays, and run this again when their leases are over (10 s)"
        )
    return connection.scalar(select(func.count()).select_from(tables.events)) or 0


def _adopt(connection: Connection, tables: OutboxTables) -> None:
    from outbox.relay.batches import adopt

    _check(connection, tables)
    adopt(connection, tables, secrets.token_hex(6))
