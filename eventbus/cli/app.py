"""Finds the command, runs it, and turns what goes wrong into a line or two and an exit code.

Only the module of the command that was asked for is imported. Commands of other distributions, and of the packages
above this one, come through the entry-point group ``eventbus.commands``: each entry is a function that is given the
subparsers action, adds a parser and sets ``run`` (a function, or a coroutine function, of the parsed arguments that
returns the exit code; None is 0).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from eventbus.cli.parser import GLOBAL_VALUES, Parser, Subcommands, UsageError, default_url
from eventbus.errors import EventBusError
from eventbus.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "eventbus.commands"

COMMANDS = {
    "run": "eventbus.cli.run",
    "shell": "eventbus.cli.interactive",
    "serve": "eventbus.cli.serve",
    "config": "eventbus.cli.config",
    "doctor": "eventbus.cli.doctor",
    "docs": "eventbus.cli.docs",
    "schedule": "eventbus.cli.schedule",
    "replay": "eventbus.cli.replay",
    "topics": "eventbus.cli.topics",
    "produce": "eventbus.cli.produce",
    "consume": "eventbus.cli.consume",
    "offsets": "eventbus.cli.offsets",
    "groups": "eventbus.cli.groups",
    "transactions": "eventbus.cli.transactions",
    "acls": "eventbus.cli.acls",
    "log": "eventbus.cli.logs",
    "perf": "eventbus.cli.perf",
    "configs": "eventbus.cli.configs",
    "mirror": "eventbus.cli.mirror",
    "telemetry": "eventbus.cli.telemetry",
    "connect": "eventbus.cli.connect",
}
"""The commands of this package and the module whose ``register`` adds each."""

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

EPILOG = """\
start here:
  eventbus topics create orders --partitions 3
  eventbus produce orders                one record per line of stdin
  eventbus consume orders --from-beginning

Kafka's own command lines are understood as they are, behind `eventbus`:
  eventbus kafka-topics.sh --bootstrap-server localhost:9092 --create --topic orders
"""


def run(argv: list[str]) -> int:
    """Run the command line ``argv`` (without the program's name) and return the exit code."""
    return guarded(partial(_dispatch, argv), debug="--debug" in argv)


def guarded(command: Callable[[], int], *, debug: bool = False) -> int:
    """Run a command and return its exit code; print what a user needs of what it raises."""
    try:
        return command()
    except SystemExit as exit:  # argparse, after printing --help
        return exit.code if isinstance(exit.code, int) else EXIT_FAILURE
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:
        if debug:
            raise
        return _report(error)


def _dispatch(argv: list[str]) -> int:
    from eventbus.cli.kafka_scripts import translate

    argv = translate(argv, place_of_command(argv))
    completes = "_ARGCOMPLETE" in os.environ
    if completes:
        from eventbus.cli.completion import words_before_cursor

        argv = words_before_cursor()
    name = command_of(argv)
    parser = Parser(prog="eventbus", description="An event bus on a Kafka-format log.", epilog=EPILOG)
    parser.add_argument("--version", "-V", action="version", version=f"eventbus {__version__}")
    parser.set_defaults(run=None, json=False, debug=False, notes=[])
    subcommands = parser.add_subparsers(metavar="COMMAND", title="commands")
    _register(name, subcommands)
    if completes:
        from eventbus.cli.completion import print_completions

        print_completions(parser, subcommands)
    if not argv:
        parser.print_help()
        return 0
    args = parser.parse_args(argv)
    args.url_is_default = not hasattr(args, "url")
    if args.url_is_default:
        args.url = default_url()
    for note in args.notes:
        _complain(f"warning: {note}")
    if args.run is None:
        raise UsageError(f"{args.program}: which one?\n  see: {args.program} --help")
    with nullcontext() if name == "run" else _logging_to_stderr(args.debug):  # a service configures its own logs
        result: int | Coroutine[Any, Any, int | None] | None = args.run(args)
        if isinstance(result, Coroutine):
            from eventbus.cli.shell import run_async

            return run_async(partial(_awaited, result))
        return result or 0


async def _awaited(command: Coroutine[Any, Any, int | None]) -> int | None:
    return await command


def command_of(argv: list[str]) -> str | None:
    """Return the first word that is neither an option nor an option's value."""
    place = place_of_command(argv)
    return None if place is None else argv[place]


def place_of_command(argv: list[str]) -> int | None:
    """Where the command stands."""
    words = iter(enumerate(argv))
    for place, word in words:
        if word in GLOBAL_VALUES:
            next(words, None)
        elif not word.startswith("-"):
            return place
    return None


@contextmanager
def _logging_to_stderr(debug: bool) -> Generator[None]:
    """Warnings of the log itself (a torn tail was cut, an index rebuilt) as lines on stderr."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # A record that was not stored, a handler that raised: the command's own error, and told by it.
            if debug or record.name not in ("eventbus.producer", "eventbus.runner"):
                _complain(f"{record.levelname.lower()}: {self.format(record) if debug else record.getMessage()}")

    logger, handler = logging.getLogger("eventbus"), Handler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _register(name: str | None, subcommands: Subcommands) -> None:
    if name in COMMANDS:
        import_module(COMMANDS[name]).register(subcommands)
        return
    plugins = {entry.name: entry for entry in _entry_points()}
    if name is None:
        for module in COMMANDS.values():
            import_module(module).register(subcommands)
        for entry in plugins.values():
            _register_plugin(entry, subcommands)
    elif name in plugins:
        _register_plugin(plugins[name], subcommands)
    else:
        raise UsageError(_unknown_command(name, [*COMMANDS, *plugins]))


def _entry_points() -> Iterator[EntryPoint]:
    from importlib.metadata import entry_points

    return iter(entry_points(group=ENTRY_POINTS))


def _register_plugin(entry: EntryPoint, subcommands: Subcommands) -> None:
    try:
        register: Callable[[Subcommands], Any] = entry.load()
    except Exception as error:
        origin = entry.dist.name if entry.dist else entry.value
        _complain(f"warning: command {entry.name!r} of {origin} cannot be loaded ({type(error).__name__}: {error})")
        return
    register(subcommands)


def _unknown_command(name: str, known: list[str]) -> str:
    from eventbus.cli.kafka_scripts import SCRIPTS
    from eventbus.suggest import nearest

    hint = nearest(name, [*known, *SCRIPTS]) or f"; there are: {', '.join(sorted(known))}"
    return f"eventbus: there is no command {name!r}{hint}\n  see: eventbus --help"


def _report(error: BaseException) -> int:
    """Print what a user needs of ``error`` and choose the exit code."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, KeyboardInterrupt):
            _complain("interrupted")
            return EXIT_INTERRUPTED
    if any(isinstance(leaf, BrokenPipeError) for leaf in leaves):
        # The reader of our output went away, as `head` does: no error, and nothing more may be flushed into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    for leaf in leaves:
        if isinstance(leaf, EventBusError):
            usage = isinstance(leaf, UsageError)
            text = str(leaf) if usage else f"error: {leaf}"
            _complain("\n  ".join((text, *getattr(leaf, "__notes__", ()))))
            return EXIT_USAGE if usage else EXIT_FAILURE
    leaf = leaves[0]
    if isinstance(leaf, UnicodeEncodeError):
        lacks = leaf.object[leaf.start : leaf.end]
        _complain(f"error: output is in {leaf.encoding}, which lacks {lacks!a}: set PYTHONUTF8=1, or LANG=C.UTF-8")
    elif isinstance(leaf, OSError) and leaf.strerror:
        _complain(f"error: {leaf.strerror}{f': {leaf.filename}' if leaf.filename else ''}")
    elif notes := getattr(leaf, "__notes__", ()):  # a function of the service's own
        _complain("\n  ".join((f"error: {type(leaf).__name__}: {leaf}{_place_in_program(leaf)}", *notes)))
    else:
        _complain(f"error: {type(leaf).__name__}: {leaf}\n  this should not happen: --debug shows where")
    return EXIT_FAILURE


def _place_in_program(error: BaseException) -> str:
    from eventbus.cli.run import place_of

    place = place_of(error)
    return f" ({place})" if place else ""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions inside groups, in order: a task group wraps even a single one."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            yield from _leaves(inner)  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield error


def _complain(text: str) -> None:
    from eventbus.cli.output import printable

    print(printable(text), file=sys.stderr, flush=True)
