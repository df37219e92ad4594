"""``eventbus schema list``: the subjects, or the versions of one."""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from schema_registry.cli.registry_access import RegistryAccess, add_registry_arguments, open_registry

if TYPE_CHECKING:
    from schema_registry.entities import Schema

_SUBJECTS = ("subject", "versions", "latest", "id", "type", "name")
_VERSIONS = ("version", "id", "guid", "type", "references", "state")


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("list", help="the subjects, or the versions of one")
    parser.add_argument("subject", nargs="?", metavar="SUBJECT", help="list the versions of this subject")
    parser.add_argument("--prefix", default=":*:", metavar="PREFIX", help="subjects that begin so; :.CONTEXT: for one")
    parser.add_argument("--deleted", action="store_true", help="also what is soft-deleted")
    add_registry_arguments(parser)
    parser.set_defaults(run=list_schemas)


async def list_schemas(args: argparse.Namespace) -> None:
    out = Output.of(args)
    async with open_registry(args) as registry:
        if args.subject:
            numbers = await registry.versions(args.subject, deleted=args.deleted)
            alive = (
                set(await registry.versions(args.subject)) if not args.deleted else await _alive(registry, args.subject)
            )
            found = [await registry.version(args.subject, number, deleted=args.deleted) for number in numbers]
            out.table(_VERSIONS, [_version(each, each.version in alive) for each in found])
            return
        schemas = await registry.schemas(prefix=args.prefix, deleted=args.deleted, latest_only=False)
        by_subject = groupby(sorted(schemas, key=lambda each: (each.subject, each.version)), lambda each: each.subject)
        rows = [_subject(name, list(versions)) for name, versions in by_subject]
        out.table(_SUBJECTS, rows)
        if not rows and not out.json:
            out.note(
                f"no subjects in {registry.shown}; the first one: eventbus schema register orders-value order.avsc"
            )


async def _alive(registry: RegistryAccess, subject: str) -> set[int]:
    from serdes.errors import SchemaRegistryError

    try:
        return set(await registry.versions(subject))
    except SchemaRegistryError as error:
        if error.status == 404:  # all of it is deleted
            return set()
        raise


def _subject(name: str, versions: list[Schema]) -> tuple[object, ...]:
    last = versions[-1]
    return name, len(versions), last.version, last.id, last.schema_type or "AVRO", _name(last)


def _name(schema: Schema) -> str:
    """Return the record's full name; nothing for what has none."""
    import msgspec

    try:
        decoded = msgspec.json.decode(schema.schema, type=dict[str, object])
    except msgspec.MsgspecError:
        return ""
    namespace, name = decoded.get("namespace"), decoded.get("name") or decoded.get("title")
    return ".".join(str(part) for part in (namespace, name) if part)


def _version(schema: Schema, is_alive: bool) -> tuple[object, ...]:
    references = ", ".join(f"{each.name}={each.subject}:{each.version}" for each in schema.references)
    state = "" if is_alive else "deleted"
    return schema.version, schema.id, schema.guid or "", schema.schema_type or "AVRO", references, state
