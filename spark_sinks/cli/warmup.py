"""``eventbus spark warmup``: a cache of classes, which halves the start of Spark."""

from __future__ import annotations

import argparse

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from eventbus.format import format_duration, format_size


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "warmup",
        help="make Spark start in half the time, from now on",
        description="Runs a small landing once and keeps what the JVM loaded, for this Java and this Spark. Takes a\n"
        "minute and some 200 MB of the user's cache directory; without it everything works, and starts later.",
    )
    parser.set_defaults(run=warmup)


def warmup(args: argparse.Namespace) -> int:
    out = Output.of(args)
    out.note("running a small landing, to see what Spark loads")
    from spark_sinks.session.warmup import warmup as run

    done = run()
    out.answer(
        done._asdict(),
        f"{done.path} ({format_size(done.size_bytes)}, {done.java}) made in {format_duration(done.seconds * 1_000)}",
    )
    return 0
