"""``eventbus outbox check``: compare the tables with what programs expect."""

from __future__ import annotations

import argparse

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from outbox.cli.database import add_database, open_outbox
from outbox.cli.ddl import add_shape

_EPILOG = """\
  eventbus outbox check --database sqlite:///shop.db
  eventbus outbox check --shards 32                     with what the service says: Outbox(engine, shards=32)

Exit code 1 when something is wrong: for a deployment's script.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "check", help="whether its tables are as they should be; changes nothing", epilog=_EPILOG
    )
    add_database(parser)
    add_shape(parser)
    parser.set_defaults(run=check)


async def check(args: argparse.Namespace) -> int:
    out = Output.of(args)
    async with open_outbox(args) as opened:
        problems = await opened.database.run(opened.outbox.check)
        if out.json:
            out.data({"outbox": args.name, "problems": problems})
        elif problems:
            for problem in problems:
                out.line(problem)
        else:
            tables = opened.outbox.tables
            out.line(f"outbox {tables.name!r}: no problems ({len(tables.all)} tables, {tables.shard_count} shards)")
        return 1 if problems else 0
