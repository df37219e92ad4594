"""``eventbus schema serve``: the registry of a log over HTTP."""

from __future__ import annotations

import argparse

from eventbus.cli.parser import Subcommands, UsageError


def add(actions: Subcommands) -> None:
    from schema_registry.http.serve import add_arguments

    parser = actions.add_parser("serve", help="serve the registry of a log over HTTP, for any Confluent client")
    add_arguments(parser)
    parser.set_defaults(run=serve)


def serve(args: argparse.Namespace) -> int:
    from schema_registry.http.serve import run

    try:
        return run(args)
    except ModuleNotFoundError as error:
        raise UsageError(
            f'{args.program} needs a library that is not installed ({error.name}): pip install "eventbus-log[registry]"'
        ) from error
