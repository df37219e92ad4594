"""``eventbus schema show``: one schema, and what is known of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, natural
from schema_registry.cli.registry_access import add_registry_arguments, open_registry

if TYPE_CHECKING:
    from schema_registry.entities import Schema


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("show", help="a schema: by subject and version, or by --id")
    parser.add_argument("subject", nargs="?", metavar="SUBJECT")
    parser.add_argument("version", nargs="?", default="latest", metavar="VERSION", help="a number, or latest (default)")
    parser.add_argument("--id", type=natural, metavar="ID", help="the schema of this id, of whatever subject")
    parser.add_argument("--deleted", action="store_true", help="also when it is soft-deleted")
    parser.add_argument("--raw", action="store_true", help="the schema's text alone, byte for byte")
    add_registry_arguments(parser)
    parser.set_defaults(run=show)


async def show(args: argparse.Namespace) -> None:
    out = Output.of(args)
    if (args.subject is None) == (args.id is None):
        raise UsageError(f"{args.program}: which one? Give a subject (and version), or --id")
    async with open_registry(args) as registry:
        if args.id is not None:
            schema, level = await registry.by_id(args.id), None
        else:
            schema = await registry.version(args.subject, args.version, deleted=args.deleted)
            level = (await registry.config(args.subject)).compatibility_level
        if args.raw:
            out.raw(f"{schema.schema}\n")
        elif out.json:
            out.data(schema)
        else:
            _print(out, schema, level)


def _print(out: Output, schema: Schema, level: str | None) -> None:
    where = f"{schema.subject} version {schema.version}, " if schema.subject else ""
    out.note(f"{where}id {schema.id}, {schema.schema_type or 'AVRO'}{f', {level}' if level else ''}")
    if schema.guid:
        out.note(f"guid {schema.guid}")
    for reference in schema.references:
        out.note(f"refers to {reference.name}: {reference.subject} version {reference.version}")
    out.line(pretty(schema.schema))


def pretty(text: str) -> str:
    """Return a schema for people: JSON with a line for each field; other formats as they are."""
    import msgspec

    from schema_registry.tools.lock import json_lines

    try:
        return json_lines(msgspec.json.decode(text))
    except msgspec.MsgspecError:
        return text
