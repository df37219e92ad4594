"""``eventbus schema check``: the types in the code against a lock file or a registry, before they are merged."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eventbus.cli.output import Output, one_line
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.errors import EventBusError
from schema_registry.cli.registry_access import RegistryAccess, add_registry_arguments, with_registry
from schema_registry.cli.sources import Resolved, add_type, given_schema, write_text
from schema_registry.tools.lock import FILE, LEVELS, Lock, read_lock, write_lock

if TYPE_CHECKING:
    from schema_registry.formats import ParsedSchema
    from schema_registry.tools.judge import Declared, Known
    from schema_registry.tools.problems import Report
    from serdes.registry import SchemaText

EXIT_BROKEN = 1
EXIT_NOT_JUDGED = 2
_EPILOG = f"""\
exit code: 0 all is well; 1 something breaks, or {FILE} is not up to date; 2 it could not be judged

as in:
  eventbus schema check shop:bus --update             write {FILE}; commit it
  eventbus schema check shop:bus                      in CI: are the types of this change compatible?
  eventbus schema check shop:bus --registry http://registry:8081
  eventbus schema check order.avsc --subject orders-value --registry http://registry:8081

The lock file holds every schema a topic has had, and who reads it; the level of each subject may be changed in it.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("check", help="are the schemas in the code compatible? For CI", epilog=_EPILOG)
    parser.add_argument("targets", nargs="+", metavar="MODULE:BUS", help="buses; or one schema file with --subject")
    parser.add_argument(
        "--subject", metavar="SUBJECT", help="the target is a schema (a file, module:Type) for this one"
    )
    parser.add_argument("--lock", default=FILE, metavar="FILE", help=f"default: {FILE}")
    parser.add_argument("--update", action="store_true", help="write the lock file, if all is compatible")
    parser.add_argument("--force", action="store_true", help="with --update: also if it is not")
    parser.add_argument(
        "--level", type=str.upper, choices=LEVELS, default="BACKWARD", help="of subjects new to the lock file"
    )
    parser.add_argument(
        "--policy", choices=("warehouse",), help="warehouse: also what breaks tables of Spark, Delta, Iceberg, Parquet"
    )
    parser.add_argument("--junit", metavar="FILE", help="write the report as JUnit XML")
    parser.add_argument("--sarif", metavar="FILE", help="write the report as SARIF 2.1.0")
    add_type(parser)
    add_registry_arguments(parser)
    parser.set_defaults(run=check)


def check(args: argparse.Namespace) -> int:
    """Return the exit code: 0 if the change may be merged, 1 if not, 2 if it could not be judged."""
    out = Output.of(args)
    if args.force and not args.update:
        raise UsageError(f"{args.program}: --force goes with --update")
    if args.subject and (len(args.targets) > 1 or args.update):
        raise UsageError(f"{args.program}: --subject is for one schema, and goes without --update")
    try:
        return _check(args, out)
    except UsageError:
        raise
    except Exception as error:  # a failure of any kind must not end with the exit code of a verdict
        if args.debug:
            raise
        kind = "" if isinstance(error, EventBusError) else f"{type(error).__name__}: "
        out.note(f"error: {kind}{error}")
        return EXIT_NOT_JUDGED


def _check(args: argparse.Namespace, out: Output) -> int:
    from schema_registry.tools.judge import judge
    from schema_registry.tools.problems import Report
    from schema_registry.tools.recorded import recorded, with_outdated

    declared, passed_over = _declared(args)
    if not declared and not args.update and not Path(args.lock).exists():
        others = f"; {passed_over} use(s) have another format or no fixed topic" if passed_over else ""
        out.note(f"nothing is checked: {' '.join(args.targets)} declares no Avro type for a topic{others}")
        return EXIT_NOT_JUDGED
    known, source = _known(args, declared)
    checked = judge(declared, known, policy=args.policy or "")
    target, path = " ".join(args.targets), Path(args.lock)
    report = Report(target=target, source=source, checked=tuple(checked), passed_over=passed_over)
    if not args.update:
        if args.registry is None and not args.subject:
            lock = recorded(known, declared, args.level)
            command = f"eventbus schema check {target}{'' if args.lock == FILE else f' --lock {args.lock}'}"
            answers = with_outdated(checked, read_lock(path), lock, args.lock, command)
            report = Report(target=target, source=source, checked=tuple(answers), passed_over=passed_over)
        _show(out, args, report)
        return 0 if report.is_content else EXIT_BROKEN
    _show(out, args, report)
    if not report.is_compatible and not args.force:
        out.note(f"{args.lock} is unchanged. Use --force to record the change")
        return EXIT_BROKEN
    lock = recorded(known, declared, args.level)
    out.note(f"{args.lock} is {'written: commit it' if write_lock(path, lock) else 'up to date'}")
    return 0


def _declared(args: argparse.Namespace) -> tuple[list[Declared], int]:
    """Return the declared uses of schemas, and the number of uses without a schema to compare."""
    from schema_registry.tools.declared import declared_of
    from schema_registry.tools.judge import Declared
    from schema_registry.tools.problems import Place

    if args.subject:
        text = given_schema(args, args.targets[0])
        if text.references and args.registry is None:
            raise UsageError(f"{args.program}: --reference needs a --registry that has what is referred to")
        schema = _resolved(args, text)
        return [Declared(subject=args.subject, schema=schema, place=Place(args.targets[0], 1))], 0
    from eventbus.cli.run import load_bus

    declared: list[Declared] = []
    passed_over = 0
    for target in args.targets:
        uses, others = declared_of(load_bus(target))
        declared += uses
        passed_over += others
    return declared, passed_over


def _known(args: argparse.Namespace, declared: Sequence[Declared]) -> tuple[dict[str, Known], str]:
    """Return the history that counts, and where it is from."""
    from schema_registry.cli.registered_subjects import known_of
    from schema_registry.tools.judge import Known
    from schema_registry.tools.recorded import known_of_lock

    if args.registry is not None:
        found: list[tuple[dict[str, Known], str]] = []

        async def ask(registry: RegistryAccess) -> None:
            known, _ = await known_of(registry, [use.subject for use in declared])
            found.append((known, registry.shown))

        with_registry(args, ask)
        return found[0]
    path = Path(args.lock)
    lock = Lock() if args.update and not path.exists() else read_lock(path)
    known = known_of_lock(lock, args.lock)
    for use in declared:
        known.setdefault(use.subject, Known(level=args.level))
    return known, args.lock


def _resolved(args: argparse.Namespace, text: SchemaText) -> ParsedSchema:
    """Return a schema with what it refers to in the registry."""
    resolved = Resolved()

    async def gather(registry: RegistryAccess) -> None:
        await resolved.gather(registry, text)

    if text.references:
        with_registry(args, gather)
    return resolved.parse(text)


def _show(out: Output, args: argparse.Namespace, report: Report) -> None:
    from schema_registry.tools.junit import junit_text
    from schema_registry.tools.problems import lines_of
    from schema_registry.tools.sarif import sarif_text

    if out.json:
        out.data({"compatible": report.is_compatible, "content": report.is_content, **_plain(report)})
    else:
        for line in lines_of(report):
            out.line(one_line(line))
    writers: list[tuple[str | None, Callable[[Report], str]]] = [(args.junit, junit_text), (args.sarif, sarif_text)]
    for file, text_of in writers:
        if file:
            write_text(args, file, text_of(report))


def _plain(report: Report) -> dict[str, object]:
    import msgspec

    plain = msgspec.to_builtins(report)
    for subject, each in zip(plain["checked"], report.checked, strict=True):
        subject["compatible"] = each.is_compatible
    return plain
