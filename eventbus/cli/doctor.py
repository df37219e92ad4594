"""``eventbus doctor module:bus``: what each handler promises, and what stands in contradiction."""

from __future__ import annotations

import argparse

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "doctor",
        help="what each handler of a service promises, and what contradicts it",
        description="Import the module and tell of each handler: its delivery, its order, what may be handled twice,\n"
        "where failing records go, what a crash and a rebalance do. Nothing is started, no log is opened.",
    )
    parser.add_argument("target", metavar="MODULE:BUS", help="as in app:bus")
    parser.add_argument(
        "--connect", action="store_true", help="ask the log too: its topics, its directory, who holds it; read only"
    )
    parser.add_argument("--strict", action="store_true", help="exit code 1 for warnings too, not for errors alone")
    parser.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from eventbus.cli.run import load_bus
    from eventbus.doctor import examine, facts_of
    from eventbus.doctor.text import lines_of

    bus = load_bus(args.target)
    facts = facts_of(bus)
    if args.connect:
        import anyio

        from eventbus.doctor.connected import with_log

        facts = anyio.run(with_log, bus, facts)
    report = examine(facts)
    out = Output.of(args)
    if out.json:
        out.data(report)
    else:
        for line in lines_of(report):
            out.line(line)
    bad = {"error", "warning"} if args.strict else {"error"}
    return int(any(finding.severity in bad for finding in report.findings))
