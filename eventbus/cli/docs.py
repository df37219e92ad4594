"""``eventbus docs build | serve | diff``: the contract of a service as an AsyncAPI 3 document."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from eventbus.cli.output import Output, one_line
from eventbus.cli.parser import Subcommands, UsageError, natural
from eventbus.errors import ConfigError


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "docs",
        help="the contract of a service: an AsyncAPI 3 document, a page, what a change breaks",
        description="Import the module and tell what its bus receives and sends. Nothing is started, no log is opened.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    build = commands.add_parser("build", help="write the document")
    _takes_a_bus(build)
    build.add_argument("-o", "--output", metavar="FILE", help="write it there, not to stdout")
    build.add_argument("--format", choices=("json", "html"), help="default: json, or what FILE ends in")
    build.set_defaults(run=_build)
    serve = commands.add_parser("serve", help="show the page in a browser, on this machine alone")
    _takes_a_bus(serve)
    serve.add_argument("--port", type=natural, default=8000, metavar="PORT", help="default 8000; 0: any that is free")
    serve.set_defaults(run=_serve)
    diff = commands.add_parser(
        "diff",
        help="what changed, and whom it breaks",
        description="Compare two documents. Exit code 1: something is breaking.",
    )
    diff.add_argument("old", metavar="OLD", help="a document, as `docs build` writes it")
    diff.add_argument("new", metavar="NEW", help="a document, or module:bus")
    diff.set_defaults(run=_diff)


def _takes_a_bus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODULE:BUS", help="as in app:bus")
    parser.add_argument("--title", help="default: the bus's service")
    parser.add_argument("--api-version", default="1.0.0", metavar="VERSION", help="of the contract; default 1.0.0")


def _document(args: argparse.Namespace) -> dict[str, Any]:
    from eventbus.asyncapi import asyncapi_document
    from eventbus.cli.run import load_bus

    bus = load_bus(args.target)
    url = None if args.url_is_default else args.url
    return asyncapi_document(bus, title=args.title, version=args.api_version, url=url)


def _build(args: argparse.Namespace) -> int:
    document = _document(args)
    is_page = args.format == "html" or (args.format is None and str(args.output).endswith((".html", ".htm")))
    if is_page:
        from eventbus.asyncapi import html_page

        text = html_page(document)
    else:
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


def _serve(args: argparse.Namespace) -> int:
    from eventbus.asyncapi import html_page
    from eventbus.asyncapi.serving import open_server

    document = _document(args)
    with open_server(html_page(document), json.dumps(document, indent=2), args.port) as server:
        Output.of(args).note(f"http://127.0.0.1:{server.server_port}/ (and /asyncapi.json); Ctrl-C stops it")
        server.serve_forever()
    return 0


def _diff(args: argparse.Namespace) -> int:
    from eventbus.asyncapi import asyncapi_document, changes_between, read_document
    from eventbus.cli.run import load_bus

    is_bus = ":" in args.new and not Path(args.new).exists()
    if ":" in args.old and not Path(args.old).exists():
        raise UsageError(
            f"{args.program}: OLD is a document: keep one with  eventbus docs build {args.old} -o old.json"
        )
    old = read_document(args.old)
    new = asyncapi_document(load_bus(args.new)) if is_bus else read_document(args.new)
    changes = changes_between(old, new)
    out = Output.of(args)
    if out.json:
        out.data(changes)
    else:
        for one in changes:
            whom = f"; for {one.whom}" if one.whom else ""
            out.line(one_line(f"{one.severity:<10}  {one.where}: {one.what}{whom}"))
        counts = Counter(one.severity for one in changes)
        out.note(", ".join(f"{counts[name]} {name}" for name in ("breaking", "compatible", "info")))
    return int(any(one.severity == "breaking" for one in changes))
