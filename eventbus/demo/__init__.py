"""``eventbus demo``: 336,776 real flights through the bus and into a warehouse, checked against a loop over the CSV."""

from __future__ import annotations

import argparse

from eventbus.cli.parser import Subcommands

EPILOG = """\
Publishing goes on where the log ends, the handler at its committed offsets, landing at the warehouse's ledger, and the
running table is counted again from the topic delays: stop it at any point, run it again, nothing doubles.
After Ctrl-C every step is exact. After kill -9 the topic delays may hold some records twice (at-least-once: published,
not yet committed); flights, the tables and the warehouse are exact even then.
The transfers show the other way: a service with exactly_once=True is killed in the middle of one, and nothing doubles.
The arrivals show failures: what is tried again, what becomes a dead letter, and that a redrive empties them.
With --url kafka://host:9092 (or any other) all of it happens there, in topics demo-...; the tables come out the same.
"""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "demo",
        help="the whole story on 336,776 real flights",
        description="Every flight out of New York in 2013: published, validated, counted, landed as Parquet, checked.\n"
        "A bank that is killed in the middle of a transfer, restarted, audited. A handler that fails, and is mended.",
        epilog=EPILOG,
    )
    parser.add_argument("--dir", default="demo-data", metavar="DIR", help="where log and warehouse go (demo-data)")
    parser.add_argument("--quick", action="store_true", help="the first 20,000 flights, without Spark: seconds")
    parser.add_argument(
        "--fresh", action="store_true", help="delete what an earlier run has left: log, warehouse, topics"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from eventbus.demo.command import demo

    return demo(args)
