"""``eventbus connect``: connectors of properties files, as Kafka Connect's standalone mode runs them."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eventbus.backends.masking import shown_url
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.cli.shell import connection_settings, open_bus, run_async
from eventbus.errors import ConfigError, StoppedBySignal

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.cli.running.startup import Startup
    from eventbus.connect import Connectors
    from eventbus.connect.offsets import OffsetTopic
    from eventbus.connect.settings import Properties

EPILOG = """\
a file to a topic, and the topic to another file; Ctrl-C stops them:
  eventbus connect standalone worker.properties source.properties sink.properties

what is there now, and no more (for cron):
  eventbus connect standalone worker.properties invoices.properties --once

is all of it right?
  eventbus connect validate worker.properties source.properties
"""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "connect",
        help="files and tables to topics, topics to files, by configuration",
        description="Connectors with the settings of Kafka Connect. Sources are exactly once: what they read, and how\n"
        "far they have come, is stored in one transaction.",
        epilog=EPILOG,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    standalone = commands.add_parser("standalone", help="run connectors, until Ctrl-C or SIGTERM")
    _add_files(standalone)
    standalone.add_argument("--once", action="store_true", help="bring what is there now, then stop")
    standalone.set_defaults(run=run_standalone)
    validate = commands.add_parser("validate", help="check properties files; nothing is opened")
    _add_files(validate)
    validate.set_defaults(run=run_validate)
    offsets = commands.add_parser("offsets", help="how far sources have come")
    actions = offsets.add_subparsers(metavar="ACTION", required=True)
    for name, what in (("list", "show them"), ("reset", "forget those of a connector: it begins again")):
        action = actions.add_parser(name, help=what)
        action.add_argument(
            "connector", metavar="NAME", nargs=None if name == "reset" else "?", help="of the connector"
        )
        action.add_argument("--topic", default="connect-offsets", help="the worker's offset.storage.topic")
        action.set_defaults(run=run_offsets_reset if name == "reset" else run_offsets_list)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("worker", metavar="WORKER", help="properties of the worker: which log, which converters")
    parser.add_argument("connectors", metavar="CONNECTOR", nargs="+", help="properties of a connector")


# running --------------------------------------------------------------------------------------------------------------


def _made(args: argparse.Namespace, out: Output) -> tuple[Connectors, dict[str, str]]:
    """Return the connectors, and what the worker says of its connection. Raises UsageError."""
    from eventbus.connect import Connectors
    from eventbus.connect.settings import Properties

    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # connectors of one's own, as `eventbus run` finds services
    try:
        worker = Properties.of(args.worker)
        if worker.get("connector.class") is not None:
            raise ConfigError(f"{args.worker} is a connector's: the first file is the worker's, with its converters")
        connection = connection_settings({key: one.value for key, one in worker.values.items()})
        _choose_url(args, worker)
        connectors = Connectors(*args.connectors, worker=_own(worker), note=out.note, ends=True)
    except UsageError:
        raise
    except ConfigError as error:
        raise UsageError(str(error)) from None
    for note in connectors.notes:
        out.note(f"note: {note}")
    return connectors, connection


def _own(worker: Properties) -> Properties:
    """Without what is about the connection."""
    from eventbus.cli.shell import own_settings
    from eventbus.connect.settings import Properties

    own = own_settings({key: one.value for key, one in worker.values.items()})
    return Properties(worker.origin, {key: worker.values[key] for key in own}, worker.notes)


def _choose_url(args: argparse.Namespace, worker: Properties) -> None:
    """``--url`` goes before ``eventbus.url``, and that before ``bootstrap.servers``."""
    url = worker.get("eventbus.url")
    if url and getattr(args, "url_is_default", False):
        args.url, args.url_is_default = url, False


def run_validate(args: argparse.Namespace) -> int:
    out = Output.of(args)
    connectors, _ = _made(args, out)
    out.table(["connector", "kind"], [(run.name, run.kind) for run in connectors.runs])
    return 0


def run_standalone(args: argparse.Namespace) -> int:
    from eventbus.cli.running.exit_codes import by_signal
    from eventbus.cli.running.logs import LifeAsNotes
    from eventbus.cli.running.service import stopped_in_startup
    from eventbus.cli.running.startup import Startup, StoppedInStartup

    out = Output.of(args)
    with LifeAsNotes(out) as notes, Startup() as startup:
        try:
            connectors, connection = _made(args, out)
            bus = open_bus(args, create=True, properties=connection)
            bus.include(connectors)
            names = ", ".join(run.name for run in connectors.runs)
            notes.running = f"running {names} on {shown_url(bus.url)}; Ctrl-C stops"
            return run_async(lambda: _run(bus, connectors, args.once, startup, out))
        except StoppedInStartup:
            return stopped_in_startup(startup)
        except StoppedBySignal as error:
            out.note(str(error))
            return by_signal(error.number)


async def _run(bus: EventBus, connectors: Connectors, once: bool, startup: Startup, out: Output) -> int:
    """Return the exit code. A signal is a clean end at any time: what is at work is finished, or was not begun."""
    import anyio

    from eventbus.cli.running.exit_codes import by_signal
    from eventbus.cli.running.service import stopped_in_startup

    interrupted = False
    with anyio.CancelScope() as scope:
        startup.cancels(scope)
        async with bus:
            startup.stops(bus)
            if once:
                interrupted = not await _brought(bus)
            else:
                await bus.run()
    if scope.cancelled_caught:
        return stopped_in_startup(startup)
    out.table(
        ["connector", "kind", "state", "records", "passed over"],
        [(run.name, run.kind, run.state, run.records, run.errors) for run in connectors.runs],
    )
    failed = any(run.error is not None for run in connectors.runs)
    return 1 if failed else by_signal(signal.SIGINT) if interrupted else 0


async def _brought(bus: EventBus) -> bool:
    """All that is there now; False: a signal came before."""
    import anyio

    from eventbus.client.running.single_error import SingleError

    is_all = False
    async with SingleError(), anyio.create_task_group() as tasks:

        async def drained() -> None:
            nonlocal is_all
            await bus.drain()
            is_all = True
            bus.stop()

        tasks.start_soon(drained)
        await bus.run()
        tasks.cancel_scope.cancel()
    return is_all


# looking --------------------------------------------------------------------------------------------------------------


def _offset_topic(args: argparse.Namespace) -> OffsetTopic:
    from eventbus.connect.offsets import OffsetTopic

    return OffsetTopic(args.topic)


async def run_offsets_list(args: argparse.Namespace) -> int:
    bus, topic = open_bus(args), _offset_topic(args)

    async with bus:
        stored = list((await topic.read(bus)).values())
    chosen = [one for one in stored if args.connector in (None, one.connector)]
    Output.of(args).table(
        ["connector", "partition", "offset"],
        [(one.connector, _json(one.partition), _json(one.offset)) for one in chosen],
    )
    return 0


async def run_offsets_reset(args: argparse.Namespace) -> int:
    from eventbus.connect.offsets import entry
    from eventbus.connect.source_run import transactional_id
    from eventbus.suggest import nearest

    bus, topic = open_bus(args), _offset_topic(args)

    async with bus, bus.transaction(transactional_id(args.connector)) as transaction:  # one that runs is fenced
        stored = (await topic.read(bus)).values()
        mine = [one for one in stored if one.connector == args.connector]
        for one in mine:
            key, value = entry(one.connector, one.partition, None)
            await transaction.send(topic.topic, value, key=key)
    if not mine:
        hint = nearest(args.connector, {one.connector for one in stored})
        raise ConfigError(f"topic {args.topic!r} holds no offsets of a connector {args.connector!r}{hint}")
    Output.of(args).answer(
        {"connector": args.connector, "forgotten": len(mine)},
        f"{args.connector} begins again: {len(mine)} offset(s) forgotten",
    )
    return 0


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
