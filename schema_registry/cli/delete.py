"""``eventbus schema delete``: a subject, or one version of it."""

from __future__ import annotations

import argparse

from eventbus.cli.confirm import confirmed
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from schema_registry.cli.registry_access import add_registry_arguments, open_registry

_EPILOG = """\
A deleted version is out of the way: nothing is checked against it, and lists leave it out. Its id still answers, so
records written with it stay readable. --permanent takes that away as well, of what was deleted before.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("delete", help="delete a subject, or one version of it", epilog=_EPILOG)
    parser.add_argument("subject", metavar="SUBJECT")
    parser.add_argument("--version", metavar="VERSION", help="this version alone: a number, or latest")
    parser.add_argument("--permanent", action="store_true", help="for ever; it has to be deleted already")
    parser.add_argument("--force", action="store_true", help="do not ask before --permanent")
    add_registry_arguments(parser)
    parser.set_defaults(run=delete)


async def delete(args: argparse.Namespace) -> int:
    out = Output.of(args)
    async with open_registry(args) as registry:
        if args.permanent and not args.force:
            what = f"version {args.version} of {args.subject}" if args.version else f"all versions of {args.subject}"
            question = f"Delete {what} for ever? Their records cannot be read then."
            if not confirmed(out, question, flag="--force"):
                return 1
        if args.version is None:
            versions = await registry.delete_subject(args.subject, permanent=args.permanent)
        else:
            versions = [await registry.delete_version(args.subject, args.version, permanent=args.permanent)]
        gone = "deleted for ever" if args.permanent else "deleted"
        text = f"{args.subject}: version {', '.join(map(str, versions))} {gone}"
        out.answer({"subject": args.subject, "versions": versions, "permanent": args.permanent}, text)
        return 0
