"""``eventbus schema serve``: the registry of a log over HTTP."""

from __future__ import annotations

from eventbus.cli.parser import Subcommands
from schema_registry.http.serve import add_arguments, run


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("serve", help="serve the registry of a log over HTTP, for any Confluent client")
    add_arguments(parser)
    parser.set_defaults(run=run)
