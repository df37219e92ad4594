"""Schemas that a command is given: a file, stdin, a type of the program; and the schemas these refer to."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventbus.cli.confirm import interruptible
from eventbus.cli.parser import UsageError
from serdes.registry import Reference, SchemaText

if TYPE_CHECKING:
    from schema_registry.cli.registry_access import RegistryAccess
    from schema_registry.formats import ParsedSchema

_TYPES = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}
_REFERENCE = re.compile(r"(?P<name>[^=]+)=(?P<subject>.+):(?P<version>\d+)")


def add_schema(parser: argparse.ArgumentParser) -> None:
    """A schema given as an argument, with its type and references."""
    parser.add_argument(
        "schema", metavar="FILE", help="an .avsc, .json or .proto file, - for stdin, or a type as module:Type"
    )
    add_type(parser)


def add_type(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--type", type=str.upper, choices=("AVRO", "JSON", "PROTOBUF"), help="what it is, if the name does not say it"
    )
    parser.add_argument(
        "--reference", action="append", metavar="NAME=SUBJECT:VERSION",
        help="a type that the schema takes from another subject; repeatable, in order",
    )  # fmt: skip


def given_schema(args: argparse.Namespace, source: str | None = None) -> SchemaText:
    """Return the schema that the arguments name. Raises UsageError for what cannot be read."""
    source = str(args.schema) if source is None else source
    references = tuple(_reference(args, each) for each in args.reference or ())
    if ":" in source and not Path(source).exists():
        return SchemaText(_of_type(args, source), references=references)
    schema_type: str = args.type or _TYPES.get(Path(source).suffix.lower(), "AVRO")
    return SchemaText(given_text(args, source), schema_type, references)


def given_text(args: argparse.Namespace, source: str) -> str:
    """Return the text of a file or of stdin. Raises UsageError if it is empty or not text."""
    name = "stdin" if source == "-" else source
    try:
        with interruptible():
            text = sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
        text = text.removeprefix("\ufeff")  # a byte order mark, which some editors write and none shows
    except OSError as error:
        raise UsageError(f"{args.program}: {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{args.program}: {name} is not UTF-8: schemas are text") from None
    if not text.strip():
        raise UsageError(f"{args.program}: {name} is empty. Write a schema into it")
    return text


def _reference(args: argparse.Namespace, text: str) -> Reference:
    found = _REFERENCE.fullmatch(text)
    if not found:
        raise UsageError(f"{args.program}: --reference {text!r} is not of the form NAME=SUBJECT:VERSION")
    return Reference(found["name"], found["subject"], int(found["version"]))


def _of_type(args: argparse.Namespace, source: str) -> str:
    from serdes.avro.from_types import schema_of
    from serdes.avro.schema import AvroSchemaError
    from serdes.avro.text import to_text

    module_name, _, name = source.partition(":")
    found: Any = named(args.program, module_name, name)
    try:
        return to_text(schema_of(found))
    except AvroSchemaError as error:
        raise UsageError(f"{args.program}: {source} has no Avro schema: {error}") from None


def named(program: str, module_name: str, name: str) -> Any:
    """Return an attribute of a module in the current directory or of an installed module. Raises UsageError."""
    from eventbus.cli.run import import_named

    module = import_named(module_name)
    if not hasattr(module, name):
        from eventbus.suggest import nearest

        raise UsageError(f"{program}: module {module_name!r} has no {name!r}{nearest(name, vars(module))}")
    return getattr(module, name)


class Resolved:
    """Referenced schemas, fetched before parsing, because the parser does not wait."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, int], SchemaText] = {}

    async def gather(self, registry: RegistryAccess, text: SchemaText, depth: int = 0) -> None:
        """Raises SchemaRegistryError for one that is not there."""
        for reference in text.references:
            key = reference.subject, reference.version
            if key not in self._texts and depth < 16:
                found = (await registry.version(*key, deleted=True)).text()
                self._texts[key] = found
                await self.gather(registry, found, depth + 1)

    def parse(self, text: SchemaText, *, is_new: bool = True) -> ParsedSchema:
        """Parse a schema and its references. Raises InvalidSchema."""
        from schema_registry.formats import InvalidSchema, parse

        def resolve(reference: Reference) -> SchemaText:
            try:
                return self._texts[reference.subject, reference.version]
            except KeyError:
                raise InvalidSchema(
                    f"reference {reference.name!r}: there is no version {reference.version} of {reference.subject!r} "
                    "here"
                ) from None

        return parse(text, resolve, is_new=is_new)


def write_text(args: argparse.Namespace, file: str, text: str) -> None:
    """Write a file that an option names. Raises UsageError."""
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{args.program}: {file}: {error.strerror}") from None


def is_file(source: str) -> bool:
    """Return True if a word names a schema's file, or stdin, and not a subject."""
    return source == "-" or source.endswith((".avsc", ".json")) or Path(source).is_file()
