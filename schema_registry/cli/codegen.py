"""``eventbus schema codegen``: msgspec classes from a schema."""

from __future__ import annotations

import argparse
from pathlib import Path

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from schema_registry.cli.doors import Door, add_door, with_door
from schema_registry.cli.sources import add_type, given_schema
from serdes.registry import SchemaText


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("codegen", help="msgspec classes from a subject of the registry, or an .avsc file")
    parser.add_argument("source", metavar="SUBJECT|FILE.avsc", help="- reads a schema from stdin")
    parser.add_argument("--version", default="latest", metavar="VERSION", help="of the subject (default: latest)")
    parser.add_argument("--out", metavar="FILE.py", help="write it there (default: stdout)")
    add_type(parser)
    add_door(parser)
    parser.set_defaults(run=codegen)


def codegen(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.source == "-" or args.source.endswith((".avsc", ".json")) or Path(args.source).is_file():
        text = given_schema(args, args.source)
        if not text.references:
            _write(args, out, source_of(args, text, []), args.source)
            return 0

        async def write(door: Door) -> None:
            references: list[str] = []
            await _gather(door, text, references, 0)
            _write(args, out, source_of(args, text, references), args.source)

        return with_door(args, write)

    async def work(door: Door) -> None:
        schema = await door.version(args.source, args.version)
        text = schema.text()
        references: list[str] = []
        await _gather(door, text, references, 0)
        _write(args, out, source_of(args, text, references), f"{args.source} version {schema.version}")

    return with_door(args, work)


async def _gather(door: Door, text: SchemaText, found: list[str], depth: int) -> None:
    """The texts a schema refers to, dependencies first, each once."""
    for reference in text.references:
        schema = await door.version(reference.subject, reference.version, deleted=True)
        if depth < 16 and schema.schema not in found:
            await _gather(door, schema.text(), found, depth + 1)
            if schema.schema not in found:
                found.append(schema.schema)


def source_of(args: argparse.Namespace, text: SchemaText, references: list[str]) -> str:
    """Python source. Raises UsageError for a schema that is none, or is not Avro."""
    from serdes.avro.codegen import generate
    from serdes.avro.parse import parse
    from serdes.avro.schema import AvroSchemaError

    if text.schema_type != "AVRO":
        raise UsageError(f"{args.program}: {args.source} is a schema of {text.schema_type}: classes are made of Avro")
    try:
        return generate(parse(text.schema, references=references))
    except AvroSchemaError as error:
        raise UsageError(f"{args.program}: {args.source}: {error}") from None


def _write(args: argparse.Namespace, out: Output, source: str, what: str) -> None:
    if args.out is None:
        out.answer({"source": source}, source.rstrip("\n"))
        return
    try:
        Path(args.out).write_text(source, "utf-8")
    except OSError as error:
        raise UsageError(f"{args.program}: {args.out}: {error.strerror}") from None
    out.note(f"{args.out}: the classes of {what}")
