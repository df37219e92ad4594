"""``eventbus serve --registry-port``: the registry of the served log, in the same process.

`eventbus` does not import the registry; it finds this module by the entry point group ``eventbus.serve``.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from eventbus.cli.parser import UsageError, natural
from schema_registry.http.serve import add_security, serving


class RegistryBeside:
    """The registry's part of ``eventbus serve``, see `eventbus.cli.serve.Beside`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("the schema registry")
        group.add_argument(
            "--registry-port", type=natural, metavar="PORT", help="serve the log's schemas too (8081 is usual)"
        )
        group.add_argument("--registry-host", help="address to bind (default 127.0.0.1: this machine alone)")
        add_security(group, "registry-")

    def is_wanted(self, args: argparse.Namespace) -> bool:
        if args.registry_port is not None:
            return True
        for name, value in vars(args).items():
            if name.startswith("registry_") and value:
                raise UsageError(f"{args.program}: --{name.replace('_', '-')} needs --registry-port")
        return False

    @asynccontextmanager
    async def open(
        self, args: argparse.Namespace, url: str, settings: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, str]]:
        from eventbus import EventBus

        async with (
            EventBus(url, client_id="schema-registry", **settings) as bus,
            serving(args, bus, requires_registry=False) as server,
        ):
            yield {"registry": server.url}
