"""``eventbus mirror SRC DST``: one log copied to another, once or as it grows."""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from eventbus.backends.masking import shown_url
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, bootstrap_url, positive
from eventbus.cli.properties import read_properties
from eventbus.cli.shell import connection_settings, run_async, until_signal
from eventbus.errors import EventBusError, UnknownTopicOrPartition
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus.mirror import Mirror, PartitionCheck, Progress, TopicPlan

EPILOG = """\
from a directory to a cluster; a second time it copies what is new:
  eventbus mirror ./data kafka://one:9092,two:9092 --verify

while the log is in use: serve it (`eventbus serve ./data`), and copy what comes until Ctrl-C:
  eventbus mirror kafka://localhost:9092 kafka://one:9092 --follow

back:
  eventbus mirror kafka://one:9092 ./back --topics orders,invoices
"""

_LINE_SECONDS = 10.0
_CAUGHT_UP_SECONDS = 1.0
"""Between two lines; while there is more to copy, and when there is no more."""
_LOOK_SECONDS = 0.2


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "mirror",
        help="copy topics, records, schemas and group offsets to another log",
        description="Copies what is committed: topics with partitions and configs, records with keys, headers and\n"
        "timestamps, schemas, and the offsets of groups, translated. Exactly once: interrupted anywhere, it goes on\n"
        "where it was.",
        epilog=EPILOG,
    )
    parser.add_argument("source", metavar="SRC", help="a URL, a directory, or host:port of a Kafka")
    parser.add_argument("destination", metavar="DST", help="the same")
    what = parser.add_argument_group("what is copied")
    what.add_argument("--topics", type=_names, default=(), metavar="A,B", help="default: all but internal ones")
    what.add_argument("--pattern", metavar="REGEX", help="topics whose whole name matches")
    what.add_argument("--exclude", metavar="REGEX", help="none whose whole name matches")
    what.add_argument("--groups", metavar="REGEX", default=".*", help="whose offsets are translated; default: all")
    what.add_argument("--no-groups", action="store_true", help="of none")
    what.add_argument("--overwrite-groups", action="store_true", help="also offsets that were moved at DST since")
    what.add_argument("--again", type=_names, default=(), metavar="A,B", help="copy these from the start once more")
    how = parser.add_argument_group("how")
    how.add_argument("--follow", action="store_true", help="go on with what comes, until Ctrl-C")
    how.add_argument("--verify", action="store_true", help="then compare both sides; exit code 1 if they differ")
    how.add_argument("--verify-only", action="store_true", help="compare what was mirrored before, and copy nothing")
    how.add_argument("--dry-run", action="store_true", help="say what would be done")
    how.add_argument("--replication-factor", type=positive, default=-1, metavar="N", help="of new topics")
    how.add_argument(
        "--compression", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none", help="of batches at DST"
    )
    how.add_argument("--name", metavar="NAME", help="this mirror's, by which it finds its work again (default: of SRC)")
    how.add_argument("--source-config", metavar="FILE", help="properties of the connection to SRC")
    how.add_argument("--destination-config", metavar="FILE", help="the same for DST")
    parser.set_defaults(run=mirror)


def mirror(args: argparse.Namespace) -> int:
    from eventbus.mirror import Mirror

    if args.follow and (args.dry_run or args.verify_only):
        raise UsageError(f"{args.program}: --follow copies; leave --dry-run and --verify-only out")
    work = Mirror(
        _source(args),
        _destination(args),
        topics=args.topics,
        pattern=args.pattern,
        exclude=args.exclude,
        groups=None if args.no_groups else args.groups,
        overwrite_groups=args.overwrite_groups,
        replication_factor=args.replication_factor,
        compression=args.compression,
        again=args.again,
        name=args.name,
        source_config=_connection(args.source_config),
        destination_config=_connection(args.destination_config),
    )
    return run_async(lambda: _run(work, args, Output.of(args)))


async def _run(work: Mirror, args: argparse.Namespace, out: Output) -> int:
    async with work:
        if args.dry_run:
            return _show_plans(await work.plan(), out)
        interrupted = False
        if not args.verify_only:
            async with until_signal() as scope, _shown(work, out, args.follow):
                await (work.follow() if args.follow else _copy(work))
            interrupted = scope.cancel_called
        checks = await work.verify() if args.verify_only or (args.verify and (args.follow or not interrupted)) else []
        _show(work.progress, checks, out)
        failed = bool(work.progress.problems or work.progress.refused) or not all(check.ok for check in checks)
        return 1 if failed else 130 if interrupted and not args.follow else 0


async def _copy(work: Mirror) -> None:
    """Copy what can be copied; the rest is in the report."""
    try:
        await work.copy()
    except EventBusError:
        if not work.progress.refused:
            raise


def _url(args: argparse.Namespace, text: str) -> str:
    """A URL; ``host:port`` is a Kafka's, anything else a directory's."""
    if "://" in text:
        return text
    if re.fullmatch(r"[\w.-]+:\d+(,[\w.-]+:\d+)*", text):
        return bootstrap_url(text)
    if "/" not in text and (":" in text or "," in text or text == "localhost"):
        raise UsageError(f"{args.program}: {text!r} is no host:port of a Kafka; a directory of that name is ./{text}")
    return f"file://{quote(text)}"


def _source(args: argparse.Namespace) -> str:
    url = _url(args, args.source)
    if not _is_there(url):
        raise UnknownTopicOrPartition(f"there is no log to mirror at {shown_url(url)} (no such directory)")
    return url


def _destination(args: argparse.Namespace) -> str:
    """A directory is made by a copy, not by a look."""
    url = _url(args, args.destination)
    if _is_there(url) or not (args.dry_run or args.verify_only):
        return url
    if args.dry_run:
        return "memory://"
    raise UnknownTopicOrPartition(f"there is no log to compare at {shown_url(url)} (no such directory)")


def _is_there(url: str) -> bool:
    from eventbus.backends.urls import split_url

    scheme, rest, _ = split_url(url)
    return scheme != "file" or not rest or Path(unquote(rest)).expanduser().exists()


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _connection(path: str | None) -> dict[str, Any]:
    return {} if path is None else connection_settings(read_properties(path))


# what is shown --------------------------------------------------------------------------------------------------------


def _show_plans(plans: list[TopicPlan], out: Output) -> int:
    out.table(
        ["topic", "action", "partitions", "configs", "not copied"],
        [
            (
                plan.topic,
                plan.action,
                plan.partitions,
                ",".join([f"{key}={value}" for key, value in plan.set_configs.items()]),
                ",".join(plan.kept_back),
            )
            for plan in plans
        ],
    )
    for plan in plans:
        if plan.reason:
            out.note(f"error: {plan.reason}")
    return 1 if any(plan.reason for plan in plans) else 0


@asynccontextmanager
async def _shown(work: Mirror, out: Output, follow: bool) -> AsyncGenerator[None]:
    """Progress, beside the work: a bar on a terminal, else a line now and then."""
    import anyio

    async with anyio.create_task_group() as tasks:
        if not out.json:
            tasks.start_soon(_bar if out.draws_on(out.stderr) else _lines, work.progress, out, follow)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()


async def _lines(progress: Progress, out: Output, follow: bool) -> None:
    import anyio

    said, said_at = -1 if follow else 0, anyio.current_time()
    while True:
        await anyio.sleep(_LOOK_SECONDS)
        waited = anyio.current_time() - said_at
        has_all = follow and progress.looks and not progress.lag and waited > _CAUGHT_UP_SECONDS
        if progress.copied != said and (has_all or waited > _LINE_SECONDS):
            rest = f"{progress.lag:,} to go" if progress.lag else "all there is"
            out.note(f"{progress.copied:,} record(s) copied, {rest}")
            said, said_at = progress.copied, anyio.current_time()


async def _bar(progress: Progress, out: Output, follow: bool) -> None:
    import anyio

    from eventbus.cli.drawing import drawn_bars

    with drawn_bars(out.stderr) as bars:
        bar = bars.bar("following" if follow else "copying", completed=progress.copied)
        while True:
            bar.update(progress.copied, progress.copied + progress.lag)
            await anyio.sleep(_LOOK_SECONDS)


def _show(progress: Progress, checks: list[PartitionCheck], out: Output) -> None:
    by_partition = {TopicPartition(check.topic, check.partition): check for check in checks}
    if out.json:
        out.data(
            {
                "copied": progress.copied,
                "copied_bytes": progress.copied_bytes,
                "partitions": [
                    {"topic": where.topic, "partition": where.partition, **_fields(one), "lag": one.lag}
                    for where, one in sorted(progress.partitions.items())
                ],
                "groups": [{"group": name, **_fields(one)} for name, one in sorted(progress.groups.items())],
                "problems": progress.problems,
                "refused": {str(where): reason for where, reason in sorted(progress.refused.items())},
                "not_copied_configs": progress.kept_back,
                "restarts": progress.restarts,
                "checks": checks,
            }
        )
        return
    columns = ["topic", "partition", "copied", "lag", *(["compared", "digest"] if checks else [])]
    wheres = sorted({*progress.partitions, *by_partition})
    rows: list[tuple[Any, ...]] = []
    for where in wheres:
        one, check = progress.partitions.get(where), by_partition.get(where)
        row: tuple[Any, ...] = (*where, one.copied if one else 0, one.lag if one else None)
        if checks:
            row += (None, "-") if check is None else (check.records, check.source_digest if check.ok else "DIFFERENT")
        rows.append(row)
    out.table(columns, rows)
    if not rows:
        out.note("note: no topic of the source is chosen, or it has none")
    if progress.groups:
        out.table(
            ["group", "partitions", "state"],
            [(name, one.partitions, one.state) for name, one in sorted(progress.groups.items())],
        )
    _remark(progress, checks, out)


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def _remark(progress: Progress, checks: list[PartitionCheck], out: Output) -> None:
    """What the tables do not say."""
    for check in checks:
        place = f"{check.topic}-{check.partition}"
        for text in check.differences:
            out.note(f"error: {place}: {text}")
        if check.difference_count > len(check.differences):
            out.note(f"error: {place}: and {check.difference_count - len(check.differences):,} more")
        if check.newer:
            out.note(f"note: {place}: {check.newer:,} record(s) behind the last copy were written by others")
        if check.behind:
            out.note(f"note: {place}: up to {check.behind:,} offset(s) of the source are not mirrored yet")
        if check.gone_at_source or check.gone_at_destination:
            out.note(
                f"note: {place}: not compared, deleted or compacted: {check.gone_at_source:,} at the source, "
                f"{check.gone_at_destination:,} at the destination"
            )
    if progress.lost:
        out.note(f"warning: {progress.lost:,} offset(s) were deleted at the source before they were copied")
    for topic, configs in progress.kept_back.items():
        out.note(f"note: {topic}: not copied, for the destination to decide: {', '.join(configs)}")
    for reason in dict.fromkeys([*progress.problems.values(), *progress.refused.values()]):
        out.note(f"error: {reason}")
    if progress.moved_timestamps:
        out.note(f"note: {progress.moved_timestamps:,} record(s) of timestamp 0 have timestamp 1 at the destination")
