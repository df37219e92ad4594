"""``eventbus schema export`` and ``import``: a registry as a file of JSON lines, with its ids, GUIDs and configs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from schema_registry.cli.doors import Door, add_door, with_door

if TYPE_CHECKING:
    from schema_registry.entities import Exported

_KIND = "schema-registry"


def add(actions: Subcommands) -> None:
    export = actions.add_parser("export", help="the registry as JSON lines: ids, GUIDs, deleted ones, configs, modes")
    export.add_argument("file", nargs="?", default="-", metavar="FILE", help="where to (default: stdout)")
    export.add_argument("--prefix", default=":*:", metavar="PREFIX", help="subjects that begin so")
    export.add_argument("--without-deleted", action="store_true", help="leave out what is soft-deleted")
    add_door(export)
    export.set_defaults(run=export_registry)

    restore = actions.add_parser("import", help="what export wrote, into a registry; once or twice, it is the same")
    restore.add_argument("file", metavar="FILE", help="- for stdin")
    add_door(restore)
    restore.set_defaults(run=import_registry)


def export_registry(args: argparse.Namespace) -> int:
    out = Output.of(args)

    found: list[tuple[Exported, str]] = []

    async def work(door: Door) -> None:
        found.append((await door.export(prefix=args.prefix, deleted=not args.without_deleted), door.shown))

    with_door(args, work)
    [(exported, shown)] = found
    if args.file == "-":
        out.stdout.writelines(lines_of(exported))
    else:
        try:
            Path(args.file).write_text("".join(lines_of(exported)), "utf-8")
        except OSError as error:
            raise UsageError(f"{args.program}: {args.file}: {error.strerror}") from None
    out.note(f"{len(exported.schemas)} schemas of {shown}{'' if args.file == '-' else f' to {args.file}'}")
    return 0


def import_registry(args: argparse.Namespace) -> int:
    out = Output.of(args)
    try:
        lines = sys.stdin.readlines() if args.file == "-" else Path(args.file).read_text("utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{args.program}: {args.file}: {error.strerror}") from None
    exported = read_lines(lines, args.file)

    async def work(door: Door) -> None:
        count = await door.restore(exported)
        there = len(exported.schemas) - count
        text = f"{count} schemas are new in {door.shown}{f', {there} were there' if there else ''}"
        out.answer({"imported": count, "there": there}, text)

    return with_door(args, work, create=True)


def lines_of(exported: Exported) -> Iterator[str]:
    """A line for each schema, config and mode, references before those that refer to them; the last line counts."""
    head = {"export": _KIND, "format": exported.format, "maxIds": exported.max_ids}
    lines: list[dict[str, Any]] = [
        head,
        *({"schema": record} for record in exported.schemas),
        *({"subject": subject, "config": config} for subject, config in exported.configs.items()),
        *({"subject": subject, "mode": mode} for subject, mode in exported.modes.items()),
    ]
    for line in (*lines, {"end": len(lines)}):
        yield f"{msgspec.json.encode(line).decode()}\n"


def read_lines(lines: Iterable[str], name: str) -> Exported:
    """What `lines_of` wrote. Raises UsageError with the line that is wrong, or missing."""
    from schema_registry.entities import Exported

    read: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                read.append(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.MsgspecError as error:
                raise UsageError(f"{name}, line {number}: {error}; is it what eventbus schema export wrote?") from None
    if not read or read[0].get("export") != _KIND:
        raise UsageError(f"{name} is not what eventbus schema export writes: its first line does not say so")
    if read[0].get("format") != 1:
        raise UsageError(f"{name} is of format {read[0].get('format')}, this program knows 1: update eventbus-log")
    if read[-1].get("end") != len(read) - 1:
        raise UsageError(f"{name} is cut off: its last line does not say how many there are; export again")
    body = read[1:-1]
    return Exported(
        schemas=[line["schema"] for line in body if "schema" in line],
        configs={line["subject"]: line["config"] for line in body if "config" in line},
        modes={line["subject"]: line["mode"] for line in body if "mode" in line},
        max_ids=read[0].get("maxIds") or {},
    )
