"""``eventbus run module:bus``: start a service and run it until a signal."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, default_url
from eventbus.cli.shell import run_async
from eventbus.errors import ConfigError, StoppedBySignal

if TYPE_CHECKING:
    from eventbus import EventBus


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "run",
        help="run a service: module:bus",
        description="Import the module (the current directory is on the path), start its bus and run it until\n"
        "Ctrl-C or SIGTERM: handlers finish what they have (within the bus's drain_timeout_ms), offsets are\n"
        "committed, the log is closed. A second signal stops at once: what is unfinished is not committed.",
    )
    parser.add_argument("target", metavar="MODULE:BUS", help="as in app:bus, shop.billing:bus or app:make_bus()")
    parser.set_defaults(run=run_service)


def run_service(args: argparse.Namespace) -> int:
    bus = load_bus(args.target)
    out = Output.of(args)
    if args.url not in (bus.url, default_url()):
        out.note(f"warning: --url {args.url} is not used: {args.target} has its own, {bus.url}")

    async def main() -> None:
        async with bus:
            await bus.run()
        out.note("stopped")
        if bus.failure is not None:
            raise bus.failure  # a partition stood still: whoever supervises this process should know

    with _life_as_notes(out, f"running {args.target} on {bus.url}; Ctrl-C stops it"):
        try:
            return run_async(main)
        except StoppedBySignal as error:
            out.note(str(error))
            return 128 + error.number


@contextmanager
def _life_as_notes(out: Output, running: str) -> Generator[None]:
    """What the bus says of signals, which is not a warning, as lines on stderr; ``running`` once they are heard."""
    from eventbus.client.signals import RUNNING

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno < logging.WARNING:  # warnings are shown anyway
                out.note(running if record.msg == RUNNING else record.getMessage())

    logger, handler = logging.getLogger("eventbus.life"), Handler()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def load_bus(target: str) -> EventBus:
    """The bus that ``module:attribute`` or ``module:factory()`` names.

    Raises:
        ConfigError: there is no such module, attribute or bus; the message names what is there.
    """
    from eventbus import EventBus

    module_name, colon, expression = target.partition(":")
    if not module_name or not colon or not expression:
        raise UsageError(f"{target!r} is not of the form module:bus, as in app:bus")
    module = import_named(module_name)
    name = expression.removesuffix("()")
    if not hasattr(module, name):
        raise ConfigError(f"module {module_name!r} has no {name!r}; {_buses_in(module, module_name)}")
    found: Any = getattr(module, name)
    if expression.endswith("()"):
        found = found()
    elif callable(found) and not isinstance(found, EventBus):
        raise ConfigError(
            f"{target} is a {type(found).__name__}, not an EventBus; "
            f"if it makes one, call it: eventbus run '{module_name}:{name}()'"
        )
    if not isinstance(found, EventBus):
        raise ConfigError(
            f"{target} is of type {type(found).__name__}, not an EventBus; {_buses_in(module, module_name)}"
        )
    return found


def import_named(name: str) -> ModuleType:
    """A module of the current directory, or an installed one. Raises ConfigError that says what is wrong, and where."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            hint = " (give the module's name without .py)" if name.endswith(".py") else ""
            raise ConfigError(
                f"there is no module {error.name!r} in {here} or among the installed ones{hint}; "
                "run this where the module is, or install it"
            ) from None
        raise ConfigError(f"importing {name!r} failed, {_place(error)}: {error}") from error
    except SystemExit as error:  # not the end of this program, least of all as a success
        raise ConfigError(
            f"importing {name!r} failed, {_place(error)}: it ends the program when it is imported; put what is for "
            'running it alone under  if __name__ == "__main__":'
        ) from error
    except Exception as error:
        raise ConfigError(f"importing {name!r} failed, {_place(error)}: {type(error).__name__}: {error}") from error


def _place(error: BaseException) -> str:
    """File and line of the innermost frame outside the import machinery."""
    place, frame = "at an unknown place", error.__traceback__
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and not file.endswith(("importlib/__init__.py", __file__)):
            place = f"{file}, line {frame.tb_lineno}"
        frame = frame.tb_next
    return place


def _buses_in(module: ModuleType, module_name: str) -> str:
    from eventbus import EventBus

    names = [name for name, value in vars(module).items() if isinstance(value, EventBus)]
    if not names:
        return "it holds no EventBus: make one, as in  bus = EventBus()"
    return f"it holds {', '.join(f'{module_name}:{name}' for name in names)}"
