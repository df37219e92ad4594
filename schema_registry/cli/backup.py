"""``eventbus schema export`` and ``import``: a registry as a file of JSON lines, see `schema_registry.backup`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from eventbus.format import format_count
from schema_registry.cli.registry_access import add_registry_arguments, open_registry
from schema_registry.cli.sources import given_text, write_text


def add(actions: Subcommands) -> None:
    export = actions.add_parser("export", help="the registry as JSON lines: ids, GUIDs, deleted ones, configs, modes")
    export.add_argument("file", nargs="?", default="-", metavar="FILE", help="where to (default: stdout)")
    export.add_argument("--prefix", default=":*:", metavar="PREFIX", help="subjects that begin so")
    export.add_argument("--without-deleted", action="store_true", help="leave out what is soft-deleted")
    add_registry_arguments(export)
    export.set_defaults(run=export_registry)

    restore = actions.add_parser("import", help="what export wrote, into a registry; once or twice, it is the same")
    restore.add_argument("file", metavar="FILE", help="- for stdin")
    add_registry_arguments(restore)
    restore.set_defaults(run=import_registry)


async def export_registry(args: argparse.Namespace) -> None:
    out = Output.of(args)
    async with open_registry(args) as registry:
        lines, shown = await registry.export_lines(prefix=args.prefix, deleted=not args.without_deleted), registry.shown
    text = "".join(f"{line.decode()}\n" for line in lines)
    if args.file == "-":
        out.raw(text)
    else:
        write_text(args, args.file, text)
    out.note(f"{format_count(_schemas_in(lines), 'schema')} of {shown}{'' if args.file == '-' else f' to {args.file}'}")


async def import_registry(args: argparse.Namespace) -> None:
    out = Output.of(args)
    lines = given_text(args, args.file).split("\n")  # splitlines() would cut a text at U+2028, too
    async with open_registry(args, create=True) as registry:
        new = await registry.import_lines(lines)
        there = _schemas_in(lines) - new
        text = f"{format_count(new, 'schema')} {'is' if new == 1 else 'are'} new in {registry.shown}"
        text += f", {there} {'was' if there == 1 else 'were'} there" if there else ""
        out.answer({"imported": new, "there": there}, text)


def _schemas_in(lines: Iterable[bytes | str]) -> int:
    from schema_registry.backup import read_lines
    from schema_registry.records import SchemaValue

    return sum(isinstance(value, SchemaValue) for _, value in read_lines(lines))
