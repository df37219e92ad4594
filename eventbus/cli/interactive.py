"""``eventbus shell module:bus``: Python at a prompt, with ``await``, and with the bus open."""

from __future__ import annotations

import argparse
import ast
import code
import contextlib
import inspect
import linecache
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from eventbus.backends.masking import shown_url
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from eventbus.cli.run import import_named, load_bus, module_and_name
from eventbus.version import __version__

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from eventbus import EventBus

EPILOG = """\
at the prompt:
  >>> await bus.send("orders", {"id": "o-1"})
  >>> (await bus.health()).reason
  >>> async with bus.new_consumer("orders", group="look", value=str) as consumer:
  ...     print(await consumer.poll())
  ...

from a script:
  echo 'print(await bus.admin.list_topics())' | eventbus shell app:bus
  eventbus shell app:bus -c 'await bus.send("orders", {"id": "o-1"})'
"""

_PROGRAM, _CONSOLE = "<stdin>", "<console>"

Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "shell",
        help="Python with the bus of a service: module:bus",
        description="Import the module, start its bus without its handlers, and read Python: at a prompt on a\n"
        "terminal, else all of stdin as one program. `await` works at the top level. What the bus starts besides\n"
        "handlers (on_startup, parts that were included) is started.",
        epilog=EPILOG,
    )
    parser.add_argument("target", metavar="MODULE:BUS", help="as in app:bus, shop.billing:bus or app:make_bus()")
    parser.add_argument("-c", dest="code", metavar="CODE", help="run this, and end")
    parser.add_argument("--handlers", action="store_true", help="run the handlers, too")
    parser.set_defaults(run=open_shell)


def open_shell(args: argparse.Namespace) -> int:
    from anyio.from_thread import start_blocking_portal

    bus = load_bus(args.target)
    out = Output.of(args)
    from eventbus.cli.running.service import spell_out_what_stdout_lacks

    spell_out_what_stdout_lacks(out)
    names = _names(args.target, bus)
    is_terminal = args.code is None and sys.stdin.isatty()
    source = "" if is_terminal else sys.stdin.read() if args.code is None else args.code
    with ExitStack() as stack:
        # The loop runs in a thread of its own, and the prompt in this one: Ctrl-C and line editing work as ever.
        portal = stack.enter_context(start_blocking_portal())
        stack.enter_context(portal.wrap_async_context_manager(_started(bus, with_handlers=args.handlers)))
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _end))

        def run(function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
            return _run_in(portal, function)

        if is_terminal:
            _prompt(names, run, _banner(args, bus, names), out)
            return 0
        return _run_program(source, names, run)


@asynccontextmanager
async def _started(bus: EventBus, *, with_handlers: bool) -> AsyncGenerator[None]:
    if with_handlers:
        await bus.start()
    else:
        with bus.context.without_handlers():
            await bus.start()
    try:
        yield
    finally:
        await bus.close()


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _names(target: str, bus: EventBus) -> dict[str, Any]:
    """What there is at the prompt: all public names of the module, the handlers by theirs, and ``bus``."""
    module = import_named(module_and_name(target)[0])
    found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    found |= {handler.__name__: handler for handler in bus.context.handlers if handler.__name__.isidentifier()}
    return {**found, "bus": bus, "__name__": "__console__", "__builtins__": __builtins__}


def _banner(args: argparse.Namespace, bus: EventBus, names: dict[str, Any]) -> str:
    own = [name for name, value in names.items() if name != "bus" and _is_of_the_service(value, args.target)]
    handlers = "they run" if args.handlers else "they do not run (--handlers)"
    return (
        f"eventbus {__version__}, Python {sys.version.split()[0]}: `await` works here; Ctrl-D ends\n"
        f"bus: {shown_url(bus.url)}, {len(bus.context.handlers)} handler(s), {handlers}\n"
        f"from {args.target.partition(':')[0]}: {', '.join(sorted(own)) or 'nothing'}"
    )


def _is_of_the_service(value: Any, target: str) -> bool:
    module = getattr(value, "__module__", None) or ""
    return callable(value) and (module == target.partition(":")[0] or not module.startswith(("eventbus", "typing")))


def _run_in(portal: BlockingPortal, function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    future = portal.start_task_soon(function)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def executed(code_object: CodeType, names: dict[str, Any], run: Run) -> None:
    """On the bus's loop, where everything of the bus may be used, awaited or not. Raises what the code raises."""

    async def execute() -> BaseException | None:
        try:
            result = FunctionType(code_object, names)()
            if inspect.iscoroutine(result):
                await result
        except (SystemExit, KeyboardInterrupt) as error:  # of the program, not of the loop that runs it
            return error
        return None

    ended = run(execute)
    if ended is not None:
        raise ended


def _run_program(source: str, names: dict[str, Any], run: Run) -> int:
    linecache.cache[_PROGRAM] = (len(source), None, source.splitlines(keepends=True), _PROGRAM)  # for tracebacks
    try:
        executed(compile(source, _PROGRAM, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names, run)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        raise
    except Exception as error:
        print(_without_ours(error), file=sys.stderr, end="")
        return 1
    return 0


def _without_ours(error: BaseException) -> str:
    """Return the traceback from the first line of the program on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename not in (_PROGRAM, _CONSOLE):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


class _Console(code.InteractiveConsole):
    """Python's own, whose statements run on the bus's loop."""

    def __init__(self, names: dict[str, Any], run: Run) -> None:
        super().__init__(names, _CONSOLE)
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._names = names
        self._run = run

    def runcode(self, code: CodeType) -> None:
        try:
            executed(code, self._names, self._run)
        except SystemExit:
            raise
        except KeyboardInterrupt:
            self.write("KeyboardInterrupt\n")
        except Exception as error:
            self.write(_without_ours(error))


def _prompt(names: dict[str, Any], run: Run, banner: str, out: Output) -> None:
    with contextlib.suppress(ImportError):  # not on every system
        import readline
        import rlcompleter

        readline.set_completer(rlcompleter.Completer(names).complete)
        readline.parse_and_bind("tab: complete")
    with contextlib.suppress(SystemExit):  # exit()
        _Console(names, run).interact(banner, exitmsg="")
    out.note("closed")
