"""The process whose forks are the programs; see `tests.warm.commands`."""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import types
import warnings
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("eventbus.cli", "eventbus.client", "eventbus.server", "serdes", "dlq")
"""Imported with their modules: none of them imports more than the base dependencies."""
MODULES = ("asyncio", "anyio._backends._asyncio", "eventbus.backends.engine", "eventbus.testing")
EXTRAS = (
    "outbox",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.orm",
    "confluent_kafka",
    "starlette.applications",
    "uvicorn",
)
"""Imported where they are installed."""


class Request(NamedTuple):
    command: str
    arguments: list[str]
    directory: str
    environment: dict[str, str]


def import_all() -> None:
    for name in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in MODULES:
        importlib.import_module(name)
    for name in EXTRAS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def receive(connection: socket.socket) -> tuple[Request, list[int]]:
    header, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        return Request(*marshal.loads(stream.read(int.from_bytes(header)))), files


def serve(listener: socket.socket) -> Request:
    """Fork for each request; return it in the fork."""
    selector = selectors.DefaultSelector()
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, wake_only)
    running: dict[int, socket.socket] = {}
    for file in (listener, ended, sys.stdin):
        selector.register(file, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                request, files = receive(connection)
                pid = os.fork()
                if not pid:
                    selector.close()
                    for each in (listener, ended, wake, connection, *running.values()):
                        each.close()
                    become(files)
                    return request
                for number in files:
                    os.close(number)
                running[pid] = connection
                selector.register(connection, selectors.EVENT_READ, pid)
                send(connection, pid)
            elif key.fileobj is ended:
                ended.recv(4096)
                while running and (found := os.waitpid(-1, os.WNOHANG))[0]:
                    connection = running.pop(found[0])
                    with contextlib.suppress(KeyError):  # its client was killed
                        selector.unregister(connection)
                    send(connection, found[1])
                    connection.close()
            elif key.data in running:  # the client was killed
                os.kill(key.data, signal.SIGKILL)
                selector.unregister(key.fileobj)


def wake_only(number: int, frame: object) -> None:
    """With a handler, the signal writes to the wakeup socket; what is to be done is done in the loop."""


def send(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the client may have been killed
        connection.sendall(number.to_bytes(4))


def become(files: list[int]) -> None:
    """Make this fork look like a process that was just started."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, number in enumerate(files):
        os.dup2(number, target)
        os.close(number)


def run(request: Request) -> None:
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    arguments = request.arguments
    main: Any = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if request.command == "eventbus":
        from eventbus.cli import main as command_line

        programs = Path(sys.executable).parent
        sys.argv, sys.path[0] = [str(programs / "eventbus"), *arguments], str(programs)
        sys.exit(command_line())
    while arguments[0] == "-W":
        warnings.filterwarnings(arguments[1])  # pyright: ignore[reportArgumentType] - an action, without more
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = ["-m", *arguments[2:]], str(Path.cwd())
        runpy._run_module_as_main(arguments[1])  # pyright: ignore - what python -m calls
    elif arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        exec(arguments[1], main.__dict__)
    else:
        main.__file__ = arguments[0]
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).resolve().parent)
        exec(compile(Path(arguments[0]).read_bytes(), arguments[0], "exec"), main.__dict__)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import_all()
    gc.collect()
    gc.freeze()
    run(serve(socket.socket(fileno=int(sys.argv[1]))))
