"""``eventbus schema serve``, and what ``eventbus serve --registry-port`` takes from it."""

from __future__ import annotations

import argparse
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from eventbus.backends.masking import shown_url
from eventbus.cli.parser import UsageError, natural
from eventbus.errors import ConfigError, EventBusError

if TYPE_CHECKING:
    import ssl

    from eventbus import EventBus
    from schema_registry.http.server import HttpServer

logger = logging.getLogger("schema_registry")

DEFAULT_PORT = 8081


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``eventbus schema serve``."""
    parser.add_argument("--insecure", action="store_true", help="allow other machines in without TLS and users")
    parser.add_argument(
        "--port", dest="registry_port", type=natural, default=DEFAULT_PORT, help="default 8081; 0 takes a free one"
    )
    parser.add_argument(
        "--host", dest="registry_host", default="127.0.0.1",
        help="address to bind (default 127.0.0.1: this machine alone)",
    )  # fmt: skip
    add_security(parser.add_argument_group("security"), "")


def add_security(group: Any, prefix: str) -> None:
    """Options for users and access: ``--user`` and similar, each as ``--PREFIX...``."""
    for flag, options in {
        "user": {"metavar": "NAME:PASSWORD", "action": "append", "help": "may read and write; repeatable"},
        "users": {"metavar": "FILE", "help": "a line for each: 'name: password', or 'name: password, read'"},
        "read-only": {"action": "store_true", "help": "refuse every write"},
        "tls-cert": {"metavar": "FILE", "help": "PEM: the certificate chain (and the key)"},
        "tls-key": {"metavar": "FILE", "help": "PEM: the private key, if it is not in the same file"},
        "tls-ca": {"metavar": "FILE", "help": "PEM: whose client certificates are asked for and trusted"},
    }.items():
        group.add_argument(f"--{prefix}{flag}", dest=f"registry_{flag.replace('-', '_')}", **options)


@asynccontextmanager
async def serving(
    args: argparse.Namespace, bus: EventBus, *, requires_registry: bool = True
) -> AsyncGenerator[HttpServer]:
    """Serve the registry of a running bus as the flags request.

    Without ``requires_registry`` a registry that cannot start is logged and its requests are answered with 50004; each
    request tries to start it again. Flags that cannot be followed and a port that is taken raise in both cases.
    """
    try:
        from schema_registry.http.app import create_app
        from schema_registry.http.auth import Users
        from schema_registry.http.server import HttpServer
    except ImportError as error:
        raise ConfigError(
            f"a registry over HTTP needs a library that is not installed ({error.name}): "
            'pip install "eventbus-log[registry]"'
        ) from None

    if args.registry_users and args.registry_user:
        raise UsageError(f"{args.program}: users stand in a file or on the command line: leave one out")
    users = Users.from_file(args.registry_users) if args.registry_users else None
    if args.registry_user:
        users = Users(_users(args))
    app = create_app(bus, auth=users, read_only=args.registry_read_only)
    server = HttpServer(
        app, host=args.registry_host or "127.0.0.1", port=args.registry_port, tls=_tls(args), insecure=args.insecure
    )
    try:
        try:
            await app.start()
        except Exception as error:
            if requires_registry:
                raise
            is_fault = not isinstance(error, EventBusError)
            logger.error(
                "The schema registry cannot start, and the log is served without it. %s", error, exc_info=is_fault
            )
        async with server:
            yield server
    finally:
        await app.aclose()


def run(args: argparse.Namespace) -> int:
    """``eventbus schema serve``: until Ctrl-C or SIGTERM."""
    import asyncio

    from eventbus.cli.output import Output
    from eventbus.cli.serve import loop_factory

    out = Output.of(args)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(args, out))


async def _run(args: argparse.Namespace, out: Any) -> int:
    import sys

    from eventbus import EventBus
    from eventbus.cli.serve import hear_stop

    stop = hear_stop()
    async with EventBus(args.url, client_id="schema-registry") as bus, serving(args, bus) as server:
        log = shown_url(args.url)
        out.answer(
            {"registry": server.url, "url": log}, f"serving the schemas of {log} on {server.url}; Ctrl-C stops it"
        )
        sys.stdout.flush()
        await stop.wait()
    out.note("stopped")
    return 0


def _users(args: argparse.Namespace) -> dict[str, str]:
    users: dict[str, str] = {}
    for text in args.registry_user:
        name, colon, password = text.partition(":")
        if not name or not colon:
            raise UsageError(f"{args.program}: a user is of the form NAME:PASSWORD")  # never shows what was typed
        users[name] = password
    return users


def _tls(args: argparse.Namespace) -> ssl.SSLContext | None:
    from eventbus.server.config import Tls

    if not args.registry_tls_cert:
        if args.registry_tls_key or args.registry_tls_ca:
            raise UsageError(f"{args.program}: a key or CA for the registry needs its certificate too")
        return None
    return Tls(
        certificate_file=args.registry_tls_cert,
        key_file=args.registry_tls_key or "",
        ca_file=args.registry_tls_ca or "",
        client_auth="required" if args.registry_tls_ca else "none",
    ).context()
