"""``eventbus outbox ddl``: the statements that make an outbox's tables."""

from __future__ import annotations

import argparse

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, positive
from outbox.cli.database import VARIABLE, add_name, needs_sqlalchemy, url_of

_DIALECTS = ("sqlite", "postgresql", "mysql", "mariadb")
_EPILOG = """\
  eventbus outbox ddl --dialect postgresql | psql shop
  eventbus outbox ddl --dialect mysql --columns debezium --name shop_outbox
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "ddl",
        help="the statements that make its tables",
        description="For whoever runs such statements by hand. In a program it is outbox.create_tables(), in a\n"
        "migration op.create_outbox().",
        epilog=_EPILOG,
    )
    group = parser.add_argument_group("which outbox")
    group.add_argument("--dialect", choices=_DIALECTS, help=f"of the database (default: that of ${VARIABLE})")
    group.add_argument("--database", metavar="URL", help="in place of --dialect; nobody connects to it")
    add_name(group)
    add_shape(parser)
    parser.add_argument("--archive", action="store_true", help="with a table that published events are kept in")
    parser.set_defaults(run=ddl)


def add_shape(parser: argparse.ArgumentParser) -> None:
    """The options of an outbox that are the same for all programs that use it."""
    parser.add_argument("--shards", type=positive, metavar="N", help="into how many parts relays divide the keys")
    parser.add_argument("--columns", choices=("plain", "debezium"), help="how its columns are called")


def ddl(args: argparse.Namespace) -> int:
    needs_sqlalchemy()
    from sqlalchemy import MetaData

    from outbox import Outbox

    dialect: str = args.dialect or url_of(args, must_exist=False).get_backend_name()
    outbox = Outbox(
        MetaData(),
        args.name,
        schema=args.schema,
        shards=args.shards or 64,
        columns=args.columns or "plain",
        archive=args.archive,
    )
    text = outbox.ddl(dialect)
    out = Output.of(args)
    if out.json:
        out.data({"dialect": dialect, "ddl": text})
    else:
        out.raw(text)
    return 0
