"""``eventbus schema codegen``: msgspec classes from a schema."""

from __future__ import annotations

import argparse

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from schema_registry.cli.registry_access import RegistryAccess, add_registry_arguments, open_registry
from schema_registry.cli.sources import add_type, given_schema, is_file, write_text
from serdes.registry import SchemaText


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("codegen", help="msgspec classes from a subject of the registry, or an .avsc file")
    parser.add_argument("source", metavar="SUBJECT|FILE.avsc", help="- reads a schema from stdin")
    parser.add_argument("--version", default="latest", metavar="VERSION", help="of the subject (default: latest)")
    parser.add_argument("--out", metavar="FILE.py", help="write it there (default: stdout)")
    add_type(parser)
    add_registry_arguments(parser)
    parser.set_defaults(run=codegen)


async def codegen(args: argparse.Namespace) -> None:
    out, text, what = Output.of(args), None, args.source
    if is_file(args.source):
        text = given_schema(args, args.source)
    references: list[str] = []
    if text is None or text.references:
        async with open_registry(args) as registry:
            if text is None:
                schema = await registry.version(args.source, args.version)
                text, what = schema.text(), f"{args.source} version {schema.version}"
            await _gather(registry, text, references, 0)
    _write(args, out, source_of(args, text, references), what)


async def _gather(registry: RegistryAccess, text: SchemaText, found: list[str], depth: int) -> None:
    """The texts a schema refers to, dependencies first, each once."""
    for reference in text.references:
        schema = await registry.version(reference.subject, reference.version, deleted=True)
        if depth < 16 and schema.schema not in found:
            await _gather(registry, schema.text(), found, depth + 1)
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
    write_text(args, args.out, source)
    out.note(f"{args.out}: the classes of {what}")
