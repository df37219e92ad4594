"""``eventbus run module:bus``: start a service and run it until a signal."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from eventbus.backends.masking import shown_url
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, default_url, natural, positive
from eventbus.durations import read_duration
from eventbus.errors import ConfigError, EventBusError

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.cli.running.control_channel import WorkerChannel
    from eventbus.cli.running.startup import Startup

_PACKAGE = Path(__file__).parent.parent

EPILOG = """\
exit codes:
  0    stopped when asked to, and what was begun is finished
  1    a handler has stopped (when every one has, the service ends), or the service could not run
  2    the command line is wrong
  75   stopped when asked to, but records at work were cancelled: the time to finish was over
  130, 143   ended at once by a second SIGINT or SIGTERM
"""


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "run",
        help="run a service: module:bus",
        description="Import the module (the current directory is on the path), start its bus and run it until\n"
        "Ctrl-C or SIGTERM: handlers finish what they have (within the bus's drain_timeout_ms), offsets are\n"
        "committed, the log is closed. A second signal stops at once: what is unfinished is not committed.",
        epilog=EPILOG,
    )
    parser.add_argument("target", metavar="MODULE:BUS", help="as in app:bus, shop.billing:bus or app:make_bus()")
    parser.add_argument(
        "--drain-timeout", type=seconds, metavar="SECONDS",
        help="how long records at work may take to finish when it stops (default: the bus's drain_timeout_ms)",
    )  # fmt: skip
    parser.add_argument(
        "--stay", action="store_true",
        help="keep running when every handler has stopped (default: exit with 1, so that a supervisor restarts it)",
    )  # fmt: skip
    many = parser.add_argument_group("several processes, and new code")
    many.add_argument(
        "--workers", type=positive, metavar="N", help="processes that share the handlers' groups (default 1)"
    )
    many.add_argument("--reload", action="store_true", help="start it again when a Python file changes")
    many.add_argument(
        "--reload-dir", action="append", metavar="DIR", help="watch this one, not the current one; repeatable"
    )
    health = parser.add_argument_group("health and metrics over HTTP")
    health.add_argument(
        "--health-port", type=natural, metavar="PORT", help="serve /health/live, ready, startup and /metrics"
    )
    health.add_argument("--health-host", metavar="HOST", help="address to bind (default 127.0.0.1: this machine alone)")
    logs = parser.add_argument_group("logs, on stderr (default: as the service sets them up)")
    logs.add_argument("--log-level", type=str.lower, choices=("debug", "info", "warning", "error", "critical"))
    logs.add_argument("--log-format", choices=("text", "json"), help="json: one object a line")
    parser.set_defaults(run=run_service)


def seconds(text: str) -> float:
    """Return an argparse type: a number of seconds of at least 0, or ``30s``, ``5m``."""
    found = read_duration(text)
    try:
        value = float(text) if found is None else found / 1000
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not at least 0")
    return value


def run_service(args: argparse.Namespace) -> int:
    from eventbus.cli.running.logs import LifeAsNotes, configure
    from eventbus.cli.running.startup import Startup, StoppedInStartup

    out = Output.of(args)
    _check(args)
    with ExitStack() as stack:
        logs = configure(args.log_level, args.log_format)
        if args.reload or (args.workers or 1) > 1:
            if not logs:
                stack.enter_context(LifeAsNotes(out))
            return _supervise(args)
        from eventbus.cli.running.control_channel import WorkerChannel

        startup = stack.enter_context(Startup())
        worker = WorkerChannel.of_environment()
        notes = LifeAsNotes(out, prefix="" if worker is None else worker.prefix)
        if not logs:
            stack.enter_context(notes)
        try:
            return _run(args, startup, worker, notes, out)
        except StoppedInStartup:
            from eventbus.cli.running.service import stopped_in_startup

            return stopped_in_startup(startup)
        except EventBusError as error:
            if args.log_format != "json" or isinstance(error, UsageError):
                raise
            logging.getLogger("eventbus").error("%s", error)  # whoever collects JSON lines collects this one, too
            return 1


def _check(args: argparse.Namespace) -> None:
    """Raises UsageError for flags that do nothing, or not together; ConfigError for a library that is missing."""
    module_and_name(args.target)
    workers = args.workers or 1
    if args.reload_dir and not args.reload:
        raise UsageError(f"{args.program}: --reload-dir needs --reload")
    if args.reload and workers > 1:
        raise UsageError(f"{args.program}: --reload is for one process while you write it: leave --workers out")
    if args.health_host is not None and args.health_port is None:
        raise UsageError(f"{args.program}: --health-host needs --health-port")
    if args.reload or workers > 1:
        from eventbus.cli.running.worker_processes import check_system

        check_system()
    if args.reload:
        from eventbus.cli.running.file_changes import check_watching

        check_watching(args.reload_dir or ["."])
    if args.health_port is not None:
        from eventbus.web.server import check_library

        check_library()


def _supervise(args: argparse.Namespace) -> int:
    from eventbus.cli.running.worker_processes import Supervisor

    command = [sys.executable, "-m", "eventbus", "run", args.target]
    if not args.url_is_default:
        command += ["--url", args.url]
    for flag in ("drain_timeout", "log_level", "log_format"):
        if getattr(args, flag) is not None:
            command += [f"--{flag.replace('_', '-')}", str(getattr(args, flag))]
    for flag in ("debug", "stay"):
        if getattr(args, flag):
            command.append(f"--{flag}")
    directories = (args.reload_dir or ["."]) if args.reload else []
    return Supervisor(command, args.workers or 1, directories).run(_health_server(args))


def _health_server(args: argparse.Namespace) -> Any:
    if args.health_port is None:
        return None
    from eventbus.web.server import HealthServer

    return HealthServer(args.health_host or "127.0.0.1", args.health_port)


def _run(args: argparse.Namespace, startup: Startup, worker: WorkerChannel | None, notes: Any, out: Output) -> int:
    from eventbus.cli.running.service import run_bus, spell_out_what_stdout_lacks

    spell_out_what_stdout_lacks(out)
    bus = load_bus(args.target)
    if args.url not in (bus.url, default_url()):
        out.note(f"warning: --url {shown_url(args.url)} is not used: {args.target} has its own, {shown_url(bus.url)}")
    if args.drain_timeout is not None:
        bus.context.drain_timeout_ms = round(args.drain_timeout * 1000)
    notes.running = f"running {args.target} on {shown_url(bus.url)}; Ctrl-C stops it"
    if worker is not None:
        with worker.placed(bus):
            return run_bus(bus, startup, worker.running, stays=args.stay)
    health = _health_server(args)
    if health is None:
        return run_bus(bus, startup, stays=args.stay)
    with health.around(bus):
        logging.getLogger("eventbus.bus_run").info("health and metrics: %s/health/ready, /metrics", health.url)
        return run_bus(bus, startup, stays=args.stay)


def module_and_name(target: str) -> tuple[str, str]:
    """``module:attribute`` in two. Raises UsageError."""
    module_name, colon, expression = target.partition(":")
    if not module_name or not colon or not expression:
        raise UsageError(f"{target!r} is not of the form module:bus, as in app:bus")
    if "/" in module_name or module_name.startswith("."):
        meant = module_name.strip("./").removesuffix(".py").replace("/", ".")
        raise UsageError(f"{target!r} names a file: a module's name is meant, with dots: {meant}:{expression}")
    return module_name, expression


def load_bus(target: str) -> EventBus:
    """Return the bus that ``module:attribute`` or ``module:factory()`` names.

    Raises:
        ConfigError: there is no such module, attribute or bus; the message names what is there.
    """
    from eventbus import EventBus

    module_name, expression = module_and_name(target)
    module = import_named(module_name)
    name = expression.removesuffix("()")
    if not hasattr(module, name):
        raise ConfigError(f"module {module_name!r} has no {name!r}; {_buses_in(module, module_name)}")
    found: Any = getattr(module, name)
    if expression.endswith("()"):
        found = _made(found, target)
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


def _made(factory: Any, target: str) -> Any:
    from eventbus.client.handling.functions import is_async, takes

    if not callable(factory):
        raise ConfigError(f"{target} calls a {type(factory).__name__}: leave out the parentheses")
    if is_async(factory) or not takes(factory, 0):
        raise ConfigError(f"{target}: a plain function without arguments makes the bus: def make_bus() -> EventBus")
    try:
        return factory()
    except EventBusError:
        raise
    except Exception as error:
        raise ConfigError(f"{target} failed, {_place(error)}: {type(error).__name__}: {error}") from error


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
        hint = ""
        if "partially initialized module" in str(error):
            hint = (
                "; these modules import each other: move what both need into a third one, or import it where it is used"
            )
        raise ConfigError(
            f"importing {name!r} failed, {_place(error)}: {type(error).__name__}: {error}{hint}"
        ) from error


def _place(error: BaseException) -> str:
    """File and line of the innermost frame outside the import machinery and this package: what is to be changed."""
    return place_of(error) or "at an unknown place"


def place_of(error: BaseException) -> str:
    """Return file and line as `_place` does; empty if no frame of the program is in the traceback."""
    place, frame = "", error.__traceback__
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith(("<frozen", str(_PACKAGE))) and not file.endswith("importlib/__init__.py"):
            place = f"{file}, line {frame.tb_lineno}"
        frame = frame.tb_next
    return place


def _buses_in(module: ModuleType, module_name: str) -> str:
    from eventbus import EventBus

    names = [name for name, value in vars(module).items() if isinstance(value, EventBus)]
    if not names:
        return "it holds no EventBus: make one, as in  bus = EventBus()"
    return f"it holds {', '.join(f'{module_name}:{name}' for name in names)}"
