"""``eventbus outbox ddl``: print the statements that create an outbox's tables."""

from __future__ import annotations

import argparse

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, positive
from outbox.cli.database import VARIABLE, add_name, needs_sqlalchemy, url_of

_DIALECTS = ("sqlite", "postgresql", "mysql", "mariadb")
_EPILOG = """\
  eventbus outbox ddl --dialect postgresql | psql shop
  eventbus outbox ddl --dialect mysql --columns debezium --name shop_outbox
  eventbus outbox ddl --dialect postgresql --inbox      the tables of tx=
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "ddl",
        help="the statements that make its tables, or those of an inbox",
        description="For those who run such statements by hand. In a program it is outbox.create_tables(), in a\n"
        "migration op.create_outbox() or op.create_inbox().",
        epilog=_EPILOG,
    )
    group = parser.add_argument_group("which outbox")
    group.add_argument("--dialect", choices=_DIALECTS, help=f"of the database (default: that of ${VARIABLE})")
    group.add_argument("--database", metavar="URL", help="instead of --dialect; no connection is made")
    add_name(group)
    add_shape(parser)
    parser.add_argument("--archive", action="store_true", help="with a table that published events are kept in")
    inbox = parser.add_argument_group("an inbox")
    inbox.add_argument("--inbox", action="store_true", help="print the tables of an inbox, not those of an outbox")
    inbox.add_argument("--table", metavar="NAME", default="eventbus_offsets", help="as in Inbox(..., table=NAME)")
    parser.set_defaults(run=ddl)


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add the options that must be the same for all programs that use an outbox."""
    parser.add_argument("--shards", type=positive, metavar="N", help="into how many parts relays divide the keys")
    parser.add_argument("--columns", choices=("plain", "debezium"), help="how its columns are called")


def ddl(args: argparse.Namespace) -> int:
    needs_sqlalchemy()
    dialect: str = args.dialect or url_of(args, must_exist=False).get_backend_name()
    text = _of_inbox(args, dialect) if args.inbox else _of_outbox(args, dialect)
    out = Output.of(args)
    if out.json:
        out.data({"dialect": dialect, "ddl": text})
    else:
        out.raw(text)
    return 0


def _of_inbox(args: argparse.Namespace, dialect: str) -> str:
    from outbox.claims import Claims
    from outbox.schema import inbox_ddl

    return inbox_ddl(Claims("", table=args.table, schema=args.schema).tables, dialect)


def _of_outbox(args: argparse.Namespace, dialect: str) -> str:
    from sqlalchemy import MetaData

    from outbox import Outbox

    outbox = Outbox(
        MetaData(),
        args.name,
        schema=args.schema,
        shards=args.shards or 64,
        columns=args.columns or "plain",
        archive=args.archive,
    )
    return outbox.ddl(dialect)
