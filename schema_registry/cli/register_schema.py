"""``eventbus schema register``: a new version of a subject."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eventbus.cli.output import Output, one_line
from eventbus.cli.parser import Subcommands
from schema_registry.cli.registry_access import RegistryAccess, add_registry_arguments, with_registry
from schema_registry.cli.sources import add_schema, given_schema
from serdes.errors import SchemaRegistryError
from serdes.registry import SchemaText

if TYPE_CHECKING:
    from schema_registry.entities import SchemaRequest


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("register", help="register a schema: a file, or a type of the program")
    parser.add_argument("subject", metavar="SUBJECT", help="as in orders-value: the values of the topic orders")
    add_schema(parser)
    parser.add_argument("--normalize", action="store_true", help="store it in its normal form")
    add_registry_arguments(parser)
    parser.set_defaults(run=register)


def register(args: argparse.Namespace) -> int:
    out = Output.of(args)
    text = given_schema(args)

    async def work(registry: RegistryAccess) -> int:
        try:
            schema = await registry.register(args.subject, request_of(text), normalize=args.normalize)
        except SchemaRegistryError as error:
            if error.status != 409:
                raise
            return await _explain(registry, out, args.subject, text, error)
        out.answer(schema.answer(), f"{args.subject} version {schema.version}, id {schema.id}")
        return 0

    return with_registry(args, work, create=True)


def request_of(text: SchemaText) -> SchemaRequest:
    from schema_registry.entities import SchemaRequest

    return SchemaRequest(
        schema=text.schema,
        schema_type=None if text.schema_type == "AVRO" else text.schema_type,
        references=list(text.references) or None,
    )


async def _explain(
    registry: RegistryAccess, out: Output, subject: str, text: SchemaText, error: SchemaRegistryError
) -> int:
    """Return the same reasons as the registry's, in words that help."""
    from schema_registry.cli.registered_subjects import known_of
    from schema_registry.tools.judge import Declared, judge
    from schema_registry.tools.problems import lines_of_problems

    known, resolved = await known_of(registry, [subject], [text])
    checked = judge([Declared(subject=subject, schema=resolved.parse(text))], known)
    problems = [problem for each in checked for problem in each.problems]
    if out.json:
        out.data({"error_code": error.error_code, "message": error.message, "problems": problems})
    else:
        out.note(f"error: {subject} does not take this schema ({checked[0].level})")
        for line in lines_of_problems(problems) or [error.message]:
            out.note(f"  {one_line(line)}")
    return 1
