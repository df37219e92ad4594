"""Serve the schema registry in the process of ``eventbus serve``, for ``--registry-port``."""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from eventbus.cli.parser import UsageError, natural
from schema_registry.http.serve import add_security, serving


class EmbeddedRegistry:
    """The flags of ``eventbus serve`` that start a registry, and that registry."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("the schema registry")
        group.add_argument(
            "--registry-port", type=natural, metavar="PORT", help="serve the log's schemas too (8081 is usual)"
        )
        group.add_argument("--registry-host", help="address to bind (default 127.0.0.1: this machine alone)")
        add_security(group, "registry-")

    def is_wanted(self, args: argparse.Namespace) -> bool:
        """Return True if the arguments request a registry. Raises UsageError for flags that would have no effect."""
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
        """Serve the schemas of the log ``url``, which is open in this process. Yields the URL of the registry."""
        from eventbus import EventBus

        async with (
            EventBus(url, client_id="schema-registry", **settings) as bus,
            serving(args, bus, requires_registry=False) as server,
        ):
            yield {"registry": server.url}
