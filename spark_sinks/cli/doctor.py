"""``eventbus spark doctor``: whether this machine can land, and fast."""

from __future__ import annotations

import argparse

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands

_SIGNS = {"ok": "ok  ", "hint": "hint", "bad": "bad "}


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "doctor",
        help="whether this machine can land: Java, memory, versions, settings",
        description="Looks at Java, memory, the versions of libraries and the cache of classes. Starts nothing.\n"
        "Exit code 1 when something is bad; a hint only costs time.",
    )
    parser.set_defaults(run=doctor)


def doctor(args: argparse.Namespace) -> int:
    out = Output.of(args)
    from spark_sinks.session.doctor import doctor as look

    checks = look()
    if out.json:
        out.data([check._asdict() for check in checks])
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            out.line(f"{_SIGNS[check.status]}  {check.name:<{width}}  {check.found}")
            if check.advice:
                out.line(f"{'':<{width + 8}}{check.advice}")
    return 1 if any(check.status == "bad" for check in checks) else 0
