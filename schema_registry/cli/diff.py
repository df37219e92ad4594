"""``eventbus schema diff``: two versions field by field, and whether they read each other."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output, one_line
from eventbus.cli.parser import Subcommands, UsageError
from schema_registry.cli.registry_access import RegistryAccess, add_registry_arguments, open_registry
from schema_registry.cli.sources import Resolved, add_type, given_schema
from serdes.registry import SchemaText

if TYPE_CHECKING:
    from schema_registry.formats import ParsedSchema


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("diff", help="two versions field by field, and which of them reads the other")
    parser.add_argument("subject", metavar="SUBJECT")
    parser.add_argument("old", nargs="?", metavar="OLD", help="a version (default: the last but one)")
    parser.add_argument("new", nargs="?", metavar="NEW", help="a version, a file, or a module:Type (default: latest)")
    parser.add_argument("--all", action="store_true", help="also the fields that are the same")
    add_type(parser)
    add_registry_arguments(parser)
    parser.set_defaults(run=diff)


async def diff(args: argparse.Namespace) -> None:
    out = Output.of(args)
    async with open_registry(args) as registry:
        (old_name, old_text), (new_name, new_text) = await _both(args, registry)
        resolved = Resolved()
        for text in (old_text, new_text):
            await resolved.gather(registry, text)
        _show(out, args, (old_name, resolved.parse(old_text, is_new=False)), (new_name, resolved.parse(new_text)))


Named = tuple[str, SchemaText]


async def _both(args: argparse.Namespace, registry: RegistryAccess) -> tuple[Named, Named]:
    """Return the texts to compare, and the names for their headings."""

    async def version(number: int | str) -> Named:
        schema = await registry.version(args.subject, number, deleted=True)
        return f"version {schema.version}", schema.text()

    old: str | None = args.old
    new: str | None = args.new
    if old is not None and new is None and not _is_version(old):
        old, new = "latest", old
    if old is not None:
        if new is None or _is_version(new):
            return await version(old), await version(new or "latest")
        return await version(old), (new, given_schema(args, new))
    from schema_registry.cli.registered_subjects import numbers_of

    numbers = await numbers_of(registry, args.subject)
    if len(numbers) < 2:
        have = f"has one version, {numbers[0]}" if numbers else "is not there, or has no versions"
        raise UsageError(f"{args.program}: {args.subject!r} {have}: name a file or a type to compare it with")
    return await version(numbers[-2]), await version(numbers[-1])


def _is_version(text: str) -> bool:
    return text == "latest" or (text.isdecimal() and not Path(text).exists())


def _show(out: Output, args: argparse.Namespace, old: tuple[str, ParsedSchema], new: tuple[str, ParsedSchema]) -> None:
    (old_name, old_schema), (new_name, new_schema) = old, new
    directions = [
        (new_name, new_schema, old_name, old_schema, "new"),
        (old_name, old_schema, new_name, new_schema, "old"),
    ]
    same_kind = old_schema.schema_type == new_schema.schema_type
    found = [
        (reader_name, writer_name, reader.unreadable(writer, reader=which) if same_kind else [])
        for reader_name, reader, writer_name, writer, which in directions
    ]
    rows = _rows(old_schema, new_schema)
    if out.json:
        out.data(
            {
                "old": old_name,
                "new": new_name,
                "fields": None if rows is None else [row._asdict() for row in rows if args.all or row.change],
                "reads": [
                    {"reader": reader, "writer": writer, "can_read": same_kind and not findings, "findings": findings}
                    for reader, writer, findings in found
                ],
            }
        )
        return
    if rows is None:
        for line in difflib.unified_diff(
            _lines(old_schema), _lines(new_schema), old_name, new_name, lineterm=""
        ):  # fmt: skip
            out.line(line)
    elif shown := [row for row in rows if args.all or row.change]:
        out.table(["field", old_name, new_name, "change"], shown)
    else:
        out.line(f"{old_name} and {new_name} have the same fields")
    out.line()
    if not same_kind:
        out.line(
            f"{old_name} is {old_schema.schema_type}, {new_name} {new_schema.schema_type}: neither reads the other"
        )
        return
    for reader_name, writer_name, findings in found:
        out.line(f"{reader_name} {'cannot read' if findings else 'reads'} records of {writer_name}")
        for finding in findings:
            out.line(f"  {finding.rule}: {one_line(finding.explanation)}")
            out.line(f"    fix: {finding.fix}")


def _rows(old: ParsedSchema, new: ParsedSchema) -> list[Any] | None:
    """Return a row for each field; None for formats whose fields we do not know."""
    if (old.schema_type, new.schema_type) != ("AVRO", "AVRO"):
        return None
    from schema_registry.tools.fields import compare
    from serdes.avro.parse import parse

    before, after = (parse(one.formatted("resolved"), validate_defaults=False) for one in (old, new))
    return compare(before, after)


def _lines(schema: ParsedSchema) -> list[str]:
    from schema_registry.cli.show import pretty

    return pretty(schema.canonical).splitlines()
