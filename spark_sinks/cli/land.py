"""``eventbus spark land``: topics into tables, each record once."""

from __future__ import annotations

import argparse
import re
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from eventbus.cli.app import EXIT_INTERRUPTED
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, positive
from eventbus.cli.progress import progress_steps
from eventbus.errors import ConfigError
from eventbus.format import format_count
from spark_sinks.cli.choosing import TABLES, add_place, add_values, in_our_words, named_object, place_of, values_of

if TYPE_CHECKING:
    from spark_sinks.landing import LandReport
    from spark_sinks.running import LandProgress

_EVERY = "5s"
_MANY_FILES, _FEW_ROWS = 100, 10_000
_EPILOG = f"""\
  eventbus spark land orders ./warehouse/orders                         Parquet, a directory for each day
  eventbus spark land orders ./warehouse/orders --schema 'id string, cents long'
  eventbus spark land kafka://localhost:9092 orders delta:./lake/orders --registry http://localhost:8081 --follow
  eventbus spark land '/orders.*/' './warehouse/{{topic}}'                several topics, a table each

{TABLES}
Begin it again after Ctrl-C, a crash or a power cut: it goes on where the table is, and no record is there twice.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("land", help="land topics in tables, once or continuously", epilog=_EPILOG)
    add_place(parser, topic_required=True)
    add_values(parser)
    _add_table(parser)
    _add_running(parser)
    parser.set_defaults(run=run_land)


def _add_table(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("table")
    group.add_argument(
        "--partition-by", metavar="COLUMNS", default="dt",
        help="directories by these columns; dt is the day of the record, in UTC; '' for none (default: dt)",
    )  # fmt: skip
    group.add_argument("--event-time", metavar="COLUMN", help="the time that dt is the day of (default: the record's)")
    group.add_argument(
        "--upsert", metavar="COLUMNS", help="one row for each of these, the newest; _key: by the record's key"
    )
    group.add_argument("--transform", metavar="MODULE:FUNCTION", help="from DataFrame to DataFrame, after decoding")
    group.add_argument(
        "--starting-offsets", metavar="WHERE", default="earliest",
        help="of a new table: earliest, latest or JSON as in Kafka's Spark source (default: earliest)",
    )  # fmt: skip
    group.add_argument(
        "--compression", choices=("zstd", "snappy", "gzip", "lz4", "none"), default="zstd", help="(default: zstd)"
    )
    group.add_argument("--stage", metavar="DIR", help="for unfinished files: a directory that all tasks see")


def _add_running(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it runs")
    group.add_argument("--follow", "-f", action="store_true", help="go on until Ctrl-C or SIGTERM")
    group.add_argument(
        "--every",
        type=_interval,
        metavar="TIME",
        help=f"from one batch to the next; means --follow (default: {_EVERY})",
    )
    group.add_argument(
        "--max-offsets-per-trigger", type=positive, metavar="N", default=500_000, help="a batch (default: 500000)"
    )
    group.add_argument("--no-quarantine", action="store_true", help="stop at a record that cannot be decoded")
    group.add_argument(
        "--quarantine-limit", type=share, metavar="SHARE", default=0.01,
        help="stop when more of a batch cannot be decoded (default: 1%%)",
    )  # fmt: skip
    group.add_argument(
        "--skip-lost", action="store_true", help="go on where retention removed records before they were landed"
    )


def _interval(text: str) -> str:
    from spark_sinks.landing import interval_ms

    try:
        interval_ms(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error.reason}") from None
    return text


def run_land(args: argparse.Namespace) -> int:
    out, place = Output.of(args), place_of(args)
    assert place.topic is not None, "it is required"
    values = values_of(args)
    transform = transform_of(args.transform, args.program) if args.transform else None
    every = args.every or (_EVERY if args.follow else None)
    options: dict[str, Any] = {
        "transform": transform,
        "partition_by": columns_of(args.partition_by),
        "event_time": args.event_time,
        "upsert": columns_of(args.upsert) if args.upsert else None,
        "starting_offsets": args.starting_offsets,
        "max_offsets_per_trigger": args.max_offsets_per_trigger,
        "every": every,
        "quarantine": not args.no_quarantine,
        "quarantine_limit": args.quarantine_limit,
        "fail_on_data_loss": not args.skip_lost,
        "compression": args.compression,
        "stage": args.stage,
    }
    stop = threading.Event()
    with in_our_words(), until_signal(stop, out), progress_steps(out, "starting Spark") as report:
        from spark_sinks.landing import are_several, land, land_many

        options |= {**values._asdict(), "stop": stop, "progress": _Progress(out, report, follows=every is not None)}
        if are_several(place.topic):
            listed = [*land_many(place.url, place.topic, place.table, **options).values()]
        else:
            listed = [land(place.url, place.topic, place.table, **options)]
    show(listed, out)
    if stop.is_set() and every is None and any(report.lag for report in listed):
        out.note("interrupted; the same command goes on with the rest")
        return EXIT_INTERRUPTED
    return 0


def transform_of(name: str, program: str) -> Callable[[Any], Any]:
    """Return the function that ``--transform`` names, wrapped so that its errors name the option."""
    function = named_object(name, "--transform", program)
    if not callable(function):
        raise UsageError(f"{program}: --transform {name} is no function")

    def transform(frame: Any) -> Any:
        try:
            return function(frame)
        except Exception as error:  # the user's own code, and Spark's words about what it asked for
            from spark_sinks.errors import in_short

            told = f"{type(error).__name__}: {in_short(str(error))} (--debug shows where)"
            raise ConfigError(f"--transform {name} raised {told}") from error

    return transform


def columns_of(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def show(reports: Sequence[LandReport], out: Output) -> None:
    """Print the landed topics as a table, or as a JSON list with one element per topic."""
    if out.json:
        out.data([report._asdict() for report in reports])
        return
    columns = ("topic", "rows", "refused", "files", "batches", "behind", "seconds", "table")
    rows = [
        (each.topic, each.rows, each.rejected, each.files, each.batches, each.lag, round(each.seconds, 1), each.table)
        for each in reports
    ]
    out.table(columns, rows)
    for each in reports:
        if each.files > _MANY_FILES and each.rows < each.files * _FEW_ROWS:
            out.note(
                f"{each.files:,} small files were written. To join them: eventbus spark compact {each.table} --all"
            )
        if each.rejected:
            out.note(
                f"{format_count(each.rejected, 'record')} of {each.topic} could not be decoded and "
                f"{'is' if each.rejected == 1 else 'are'} in the quarantine: fix the schema, then "
                f"eventbus spark replay-quarantine {each.topic} {each.table}"
            )


def share(text: str) -> float:
    """Parse a share, ``1%`` or ``0.01``, for argparse."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: write 1% or 0.01, up to 100% or 1")
    return value


class _Progress:
    """Report each batch when the engine has committed it; with ``--json --follow``, as one line of JSON."""

    def __init__(self, out: Output, report: Callable[[str, int, int, str], None], *, follows: bool) -> None:
        self._out = out
        self._report = report
        self._follows = follows

    def __call__(self, now: LandProgress) -> None:
        if self._out.json and self._follows:
            self._out.data(now._asdict())
            self._out.stdout.flush()
            return
        remark = f"{now.lag:,} behind" if now.lag else "caught up"
        if now.rejected:
            remark += f", {now.rejected:,} refused"
        self._report(now.topic, now.offsets, now.offsets + now.lag if self._follows else now.total, remark)


@contextmanager
def until_signal(stop: threading.Event, out: Output) -> Generator[None]:
    """The first SIGINT or SIGTERM sets ``stop``, so that the batch which runs is finished; the second one ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        out.note("finishing the batch that runs; once more to end at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
