"""``eventbus serve``: the embedded log on the network, speaking Kafka's wire protocol."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, key_values, natural, positive
from eventbus.cli.properties import read_properties

if TYPE_CHECKING:
    import asyncio

    from eventbus.server import Listener, ServerConfig
    from eventbus.server.config import Tls
    from eventbus.server.server import Server

EPILOG = """\
any Kafka client or tool works then:
  eventbus serve ./data
  kcat -b localhost:9092 -L
  kafka-console-consumer.sh --bootstrap-server localhost:9092 --topic orders --from-beginning

beyond this machine, with TLS and passwords:
  eventbus serve ./data --listener SASL_SSL://0.0.0.0:9093 --advertised SASL_SSL://bus.example.org:9093 \\
      --tls-cert server.pem --user alice:secret --acls --super-user alice
"""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "serve",
        help="the embedded log on the network: Kafka's wire protocol",
        description="Serve a directory's log to Kafka clients and tools, until Ctrl-C or SIGTERM.",
        epilog=EPILOG,
    )
    parser.add_argument("directory", nargs="?", metavar="DIR", help="the log's directory (default: that of --url)")
    parser.add_argument("--config", metavar="FILE", help="a server.properties with Kafka's keys; flags go before it")
    parser.add_argument("--override", action="append", metavar="KEY=VALUE", help="one of its keys; repeatable")
    where = parser.add_argument_group("where it listens")
    where.add_argument("--host", default=None, help="address to bind (default 127.0.0.1: this machine alone)")
    where.add_argument("--port", type=natural, default=None, help="default 9092; 0 takes a free one")
    where.add_argument(
        "--listener", action="append", metavar="NAME://HOST:PORT",
        help="instead of --host and --port; repeatable. NAME is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    )  # fmt: skip
    where.add_argument(
        "--advertised", action="append", metavar="[NAME://]HOST:PORT", help="what clients are told to connect to"
    )
    where.add_argument("--insecure", action="store_true", help="allow other machines in without TLS and SASL")
    log = parser.add_argument_group("the log")
    log.add_argument("--ephemeral", action="store_true", help="in memory; gone when the server stops")
    log.add_argument("--fsync", choices=("commit", "interval", "os"), help="when bytes are forced to disk")
    log.add_argument("--num-partitions", type=positive, metavar="N", help="of topics that do not say (default 1)")
    log.add_argument(
        "--auto-create", action=argparse.BooleanOptionalAction, default=None, help="create topics when first used"
    )
    log.add_argument(
        "--accept-replication-factor", action="store_true",
        help="take topics with a replication factor above 1, keeping one copy",
    )  # fmt: skip
    log.add_argument("--group-min-session-timeout-ms", type=positive, metavar="MS", help="default 6000")
    parser.add_argument("--verbose", action="store_true", help="say of every connection that is closed why")
    security = parser.add_argument_group("security")
    security.add_argument("--tls-cert", metavar="FILE", help="PEM: the certificate chain (and the key)")
    security.add_argument("--tls-key", metavar="FILE", help="PEM: the private key, if it is not in the same file")
    security.add_argument("--tls-ca", metavar="FILE", help="PEM: whose client certificates are asked for and trusted")
    security.add_argument("--user", action="append", metavar="NAME:PASSWORD", help="for SASL; repeatable")
    security.add_argument("--acls", action="store_true", help="deny what no ACL allows")
    security.add_argument("--super-user", action="append", metavar="NAME", help="may do everything; repeatable")
    from schema_registry.http.embedded_server import EmbeddedRegistry  # upwards, and only for this command

    registry = EmbeddedRegistry()
    registry.add_arguments(parser)
    parser.set_defaults(run=serve, registry=registry)


def serve(args: argparse.Namespace) -> int:
    import asyncio

    from eventbus.server.server import Server

    out = Output.of(args)
    url, config, log = _what(args, out)
    server = Server(url, config, log)
    wanted = [args.registry.open(args, url, log)] if args.registry.is_wanted(args) else []
    _allow_many_connections()
    with _connections_as_notes(out, args.verbose), asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(server, wanted, out))


def hear_stop() -> asyncio.Event:
    """Set by Ctrl-C or SIGTERM; a second one does not wait for anybody."""
    import asyncio

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    heard: list[int] = []

    def hear(number: int) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, hear, number)
        except NotImplementedError:  # Windows: the loop cannot, and wakes up for a handler by itself
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(hear, number))
    return stop


async def _run(server: Server, wanted: list[AbstractAsyncContextManager[dict[str, str]]], out: Output) -> int:
    import asyncio

    stop = hear_stop()
    async with server, AsyncExitStack() as stack:
        beside: dict[str, str] = {}
        for each in wanted:
            beside |= await stack.enter_async_context(each)
        addresses = ", ".join(map(_address, server.listeners))
        others = "".join(f", {name} on {where}" for name, where in beside.items())
        out.answer(
            {"url": server.url, "bootstrap": server.bootstrap, "cluster_id": server.node.cluster_id, **beside},
            f"serving {server.url} on {addresses}{others}; Ctrl-C stops it",
        )
        sys.stdout.flush()
        if any(listener.has_sasl for listener in server.listeners) and not (
            server.config.security.users or server.node.broker.security.scram_users()
        ):
            out.note("note: there are no users, so nobody can log in: --user NAME:PASSWORD is one")
        failure = asyncio.create_task(server.wait())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait((failure, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failure.done():
            failure.result()
        failure.cancel()
        with suppress(asyncio.CancelledError):
            await failure
    out.note("stopped")
    return 0


def _address(listener: Listener) -> str:
    from eventbus.server.config import format_address

    at = format_address(listener.host or "every address", listener.port)
    told = format_address(listener.advertised_host, listener.advertised_port)
    clients = f"; clients are told {told}" if listener.advertised_host and told != at else ""
    return f"{at} ({listener.security_protocol}{clients})"


def _what(args: argparse.Namespace, out: Output) -> tuple[str, ServerConfig, dict[str, Any]]:
    """Return the log's URL, the server's settings, the log's settings: flags before ``--config``."""
    from eventbus.server.config import ServerConfig
    from eventbus.server.properties import settings_of

    if args.directory and args.directory.endswith(".properties") and not args.config:
        args.config, args.directory = args.directory, None  # as kafka-server-start takes it
    properties = read_properties(args.config) if args.config else {}
    properties |= key_values(args.override, "--override")
    told = settings_of(properties)
    for key in told.ignored:
        out.note(f"note: {key} means nothing on one node, and is not looked at")
    server = told.server
    listeners = _listeners(args)
    if listeners is not None:
        server["listeners"] = listeners
    tls = _tls(args)
    if tls is not None:
        server["tls"] = tls
    if args.user or args.acls or args.super_user:
        import msgspec

        from eventbus.server.security.config import SecurityConfig

        base: SecurityConfig = server.get("security") or SecurityConfig()
        server["security"] = msgspec.structs.replace(
            base,
            users={**base.users, **_users(args)},
            acls=base.acls or args.acls,
            super_users=(*base.super_users, *(_principal(name) for name in args.super_user or ())),
        )
    if args.insecure:
        server["insecure"] = True
    if args.accept_replication_factor:
        server["accept_replication_factor"] = True
    log = dict(told.log)
    for key in ("fsync", "num_partitions", "group_min_session_timeout_ms"):
        value = getattr(args, key)
        if value is not None:
            log[key] = value
    if args.auto_create is not None:
        log["auto_create_topics"] = args.auto_create
    config = ServerConfig(**server)
    _check_that_flags_count(args, config)
    return _url(args, told.directory), config, log


def _check_that_flags_count(args: argparse.Namespace, config: ServerConfig) -> None:
    """Nobody believes himself safe who is not: a flag that would do nothing is an error.

    A certificate does nothing where no listener shows it; passwords and permissions, where none asks who a peer is.
    """
    if args.tls_cert and not any(listener.has_tls for listener in config.listeners):
        raise UsageError(
            f"{args.program}: --tls-cert needs a listener that shows it: --listener SSL://127.0.0.1:9092, or SASL_SSL"
        )
    if args.super_user and not config.security.acls:
        raise UsageError(f"{args.program}: --super-user needs --acls: without them everybody may do everything")
    asks = any(
        listener.has_sasl or (listener.has_tls and config.tls is not None and config.tls.client_auth != "none")
        for listener in config.listeners
    )
    flag = "--user" if args.user else "--acls"
    if (args.user or args.acls) and not asks:
        raise UsageError(
            f"{args.program}: {flag} needs a listener that asks who a peer is: --listener "
            "SASL_PLAINTEXT://127.0.0.1:9092, or SASL_SSL, or SSL with --tls-ca"
        )


def _url(args: argparse.Namespace, directory: str | None) -> str:
    if args.ephemeral:
        if args.directory:
            raise UsageError(f"{args.program}: --ephemeral keeps nothing: leave {args.directory!r} out")
        return "memory://serve"
    where: str = args.directory or directory or args.url
    if where.startswith("kafka://"):
        raise UsageError(f"{args.program}: {where} is a server already: name a directory, say ./data")
    return where if "://" in where else f"file://{quote(where)}"


def _listeners(args: argparse.Namespace) -> tuple[Listener, ...] | None:
    from eventbus.server.config import DEFAULT_PORT, format_address
    from eventbus.server.properties import listeners_of

    if args.listener and (args.host is not None or args.port is not None):
        raise UsageError(f"{args.program}: --listener says host and port itself: leave --host and --port out")
    if not args.listener and args.host is None and args.port is None and not args.advertised:
        return None
    port = DEFAULT_PORT if args.port is None else args.port
    listeners = args.listener or [f"PLAINTEXT://{format_address(args.host or '127.0.0.1', port)}"]
    return listeners_of(",".join(listeners), ",".join(args.advertised or ()))


def _tls(args: argparse.Namespace) -> Tls | None:
    from eventbus.server.config import Tls

    if not args.tls_cert:
        if args.tls_key or args.tls_ca:
            raise UsageError(f"{args.program}: --tls-key and --tls-ca need --tls-cert FILE")
        return None
    return Tls(
        certificate_file=args.tls_cert,
        key_file=args.tls_key or "",
        ca_file=args.tls_ca or "",
        client_auth="required" if args.tls_ca else "none",
    )


def _users(args: argparse.Namespace) -> dict[str, str]:
    users: dict[str, str] = {}
    for text in args.user or ():
        name, colon, password = text.partition(":")
        if not name or not colon:
            raise UsageError(f"{args.program}: --user is of the form NAME:PASSWORD")  # never shows what was typed
        users[name] = password
    return users


def _principal(name: str) -> str:
    return name if ":" in name else f"User:{name}"


def _allow_many_connections() -> None:
    """As many open files as the system lets this process have: the usual 1,024 are a thousand connections."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limit; a system may refuse
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def loop_factory() -> Any:
    """uvloop's, where it is installed."""
    with suppress(ImportError):
        import uvloop  # pyright: ignore[reportMissingImports] - optional, and no dependency of ours

        return uvloop.new_event_loop  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return None


@contextmanager
def _connections_as_notes(out: Output, wanted: bool) -> Generator[None]:
    """With ``--verbose``: who was sent away and why, as lines on stderr. Warnings are shown anyway."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno < logging.WARNING:
                out.note(record.getMessage())

    logger, handler = logging.getLogger("eventbus.server"), Handler()
    level = logger.level
    if wanted:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
