"""``eventbus docs build``: the contract of a service as an AsyncAPI 3 document."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from eventbus.errors import ConfigError


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "docs",
        help="the contract of a service as an AsyncAPI 3 document",
        description="Import the module and describe what its bus sends and receives. Nothing is started or opened.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    build = commands.add_parser("build", help="write the document")
    build.add_argument("target", metavar="MODULE:BUS", help="as in app:bus")
    build.add_argument("--title", help="default: the bus's service")
    build.add_argument("--api-version", default="1.0.0", metavar="VERSION", help="of the contract; default 1.0.0")
    build.add_argument("-o", "--output", metavar="FILE", help="write it there, not to stdout")
    build.set_defaults(run=_build)


def _build(args: argparse.Namespace) -> int:
    from eventbus.asyncapi import asyncapi_document
    from eventbus.cli.run import load_bus

    url = None if args.url_is_default else args.url
    document = asyncapi_document(load_bus(args.target), title=args.title, version=args.api_version, url=url)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    out = Output.of(args)
    if args.output is None:
        out.raw(text)
        return 0
    try:
        Path(args.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{args.output} cannot be written: {error.strerror}") from None
    channels, operations = len(document["channels"]), len(document["operations"])
    out.note(f"wrote {args.output} (channels: {channels}, operations: {operations})")
    return 0
