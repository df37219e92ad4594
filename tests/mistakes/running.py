"""Mistakes around a program: what it runs on, and how it is started and stopped."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from typing import Any

from eventbus import EventBus
from eventbus.server import Listener, ServerConfig
from eventbus.testing import KafkaServer
from tests.mistakes.kit import At, Section

STARTED_QUICKLY = {"PYTHONUNBUFFERED": "1"}


def python(at: At, *words: str, **environment: str) -> subprocess.Popen[str]:
    """A process beside this one."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=at.folder,
        env={**os.environ, **STARTED_QUICKLY, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.PIPE,
        text=True,
    )


MACHINE = Section("The machine and the network")


@MACHINE.mistake(
    "two processes on one directory", "`eventbus serve` for both, or a directory each",
    "/srv/shop/data is in use by process", "eventbus serve", "kafka://HOST:PORT",
)  # fmt: skip
async def directory_in_use(at: At) -> None:
    holding = (
        "from eventbus.log.storage import FileStorage; held = FileStorage('data'); held.lock(); print('held'); input()"
    )
    with python(at, "-c", holding) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            await EventBus("file://./data").start()
        finally:
            holder.kill()


@MACHINE.mistake(
    "a directory that the user may not write to", "another directory, or its owner",
    "data cannot be used as a log: Permission denied", "a directory this user may write to",
)  # fmt: skip
async def no_permission(at: At) -> None:
    def refuse(path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    at.patch.setattr(os, "makedirs", refuse)  # as root, who runs tests in containers, everything is allowed
    await EventBus("file://./data").start()


@MACHINE.mistake(
    "a disk that is full", "free some space: writing goes on", "the disk is full", "orders-0", "Free some space"
)
async def full_disk(at: At) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bus = EventBus("file://./data")
    bus.topic("orders")
    async with bus:
        await bus.send("orders", "o-1")
        with at.patch.context() as disk:
            disk.setattr("eventbus.log.storage._pwrite", full)
            await bus.send("orders", "o-2")


@MACHINE.mistake(
    "`kafka://` without its library", '`pip install "eventbus-log[kafka]"`', "kafka:// needs", "eventbus-log[kafka]"
)
def missing_library(at: At) -> None:
    find = importlib.util.find_spec

    def lacking(name: str, package: str | None = None) -> Any:
        return None if name == "confluent_kafka" else find(name, package)

    at.patch.setattr(importlib.util, "find_spec", lacking)
    EventBus("kafka://localhost:9092")


@MACHINE.mistake(
    "a Kafka that does not run, or another port", "start it, or name it", "127.0.0.1:9092", "refused",
)  # fmt: skip
async def kafka_is_away(at: At) -> None:
    at.patch.setattr("eventbus.backends.kafka.backend._START_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    await EventBus(f"kafka://127.0.0.1:{port}").start()


@MACHINE.mistake(
    "a broker that advertises an address nobody can reach", "its `advertised.listeners`",
    "127.0.0.1:9092", "advertised.listeners",
)  # fmt: skip
async def advertised_elsewhere(at: At) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    listener = Listener(port=0, advertised_host="127.0.0.1", advertised_port=nobody)
    at.patch.setattr("eventbus.backends.kafka.backend._START_SECONDS", 0.5)
    with KafkaServer(config=ServerConfig(listeners=(listener,))) as server:
        await EventBus(f"kafka://127.0.0.1:{server.listeners[0].port}").start()


@MACHINE.mistake(
    "`security.protocol` of another kind than the broker's", "the broker's",
    "speaks PLAINTEXT, and security.protocol is SSL",
)  # fmt: skip
async def wrong_protocol(at: At) -> None:
    with KafkaServer() as server:
        await EventBus(f"kafka://{server.bootstrap}?security.protocol=SSL").start()


@MACHINE.mistake(
    "`eventbus serve` on a port that is taken", "another `--port`", "port 9092 of 127.0.0.1", "in use", "--port"
)
def port_in_use(at: At) -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return at.cli("serve", "./data", "--port", str(taken.getsockname()[1]))


@MACHINE.mistake(
    "`eventbus serve --host 0.0.0.0` without TLS and passwords",
    "TLS and SASL, or `--insecure`",
    "0.0.0.0",
    "--insecure",
)
def open_to_everybody(at: At) -> str:
    return at.cli("serve", "./data", "--host", "0.0.0.0", "--port", "0")


@MACHINE.mistake("Python 3.10", "Python 3.11 or newer", "eventbus needs Python 3.11 or newer", "3.10")
def old_python(at: At) -> str:
    with python(at, "-c", "import sys; sys.version_info = (3, 10, 4, 'final', 0); import eventbus") as old:
        return old.communicate()[0].strip().splitlines()[-1]


RUN = Section("The command line, and the end of a service")


@RUN.mistake("`eventbus run app.py`", "`eventbus run app:bus`", "'app.py' is not of the form module:bus", "app:bus")
def file_for_target(at: At) -> str:
    return at.cli("run", "app.py")


@RUN.mistake(
    "`eventbus run shop:bus` in another folder", "where shop.py is", "no module 'shopp'", "/srv/shop", "run this where"
)
def module_that_is_not_there(at: At) -> str:
    return at.cli("run", "shopp:bus")


@RUN.mistake("`eventbus run app:buss`", "`app:bus`", "has no 'buss'", "mistaken_app:bus")
def bus_of_another_name(at: At) -> str:
    at.file("mistaken_app.py", "from eventbus import EventBus\nbus = EventBus('memory://')\n")
    return at.cli("run", "mistaken_app:buss")


@RUN.mistake(
    "`eventbus run app:make_bus`, a function",
    "`app:make_bus()`",
    "not an EventBus",
    "eventbus run 'mistaken_maker:make_bus()'",
)
def factory_not_called(at: At) -> str:
    at.file("mistaken_maker.py", "from eventbus import EventBus\ndef make_bus(): return EventBus('memory://')\n")
    return at.cli("run", "mistaken_maker:make_bus")


@RUN.mistake(
    "two modules that import each other",
    "what both need in a third one",
    "importing 'circle_a' failed",
    "circle_b.py",
    "circular import",
)
def circular_import(at: At) -> str:
    at.file("circle_a.py", "from circle_b import handle\nbus = 1\n")
    at.file("circle_b.py", "from circle_a import bus\nhandle = 1\n")
    return at.cli("run", "circle_a:bus")


@RUN.mistake(
    "a program that runs when it is imported", 'put it under `if __name__ == "__main__":`',
    "importing 'mistaken_main' failed", "mistaken_main.py, line", '__name__ == "__main__"',
)  # fmt: skip
def runs_when_imported(at: At) -> str:
    at.file("mistaken_main.py", "import sys\nsys.exit(0)\n")
    return at.cli("run", "mistaken_main:bus")


@RUN.mistake("`eventbus topic list`", "`eventbus topics list`", "'topic'", "topics")
def misspelt_command(at: At) -> str:
    return at.cli("topic", "list")


@RUN.mistake(
    "a command before there is a log", "`--url`", "there is no log at file://./data", "--url", "topics create NAME"
)
def no_log_there(at: At) -> str:
    return at.cli("topics", "list")


@RUN.mistake("`EVENTBUS_URL=flie://./data`", "`file://`", "unknown scheme 'flie'", "did you mean 'file'")
def environment_of_wrong_form(at: At) -> str:
    at.patch.setenv("EVENTBUS_URL", "flie://./data")
    return at.cli("topics", "list")


SERVICE = """
import time
from eventbus import EventBus
bus = EventBus("memory://")
bus.topic("orders")

@bus.on_startup
async def begin(bus: EventBus) -> None:
    await bus.send("orders", "o-1")

@bus.consumer("orders", group="billing")
def handle(order: str) -> None:
    print("at work", flush=True)
    time.sleep(600)  # the mistake itself; it is killed long before
"""


@RUN.mistake(
    "Ctrl-C twice, because a handler takes its time", "once, and wait for `drain_timeout_ms`",
    "SIGINT: stopping; records in flight have up to", "SIGINT came twice",
)  # fmt: skip
def interrupted_twice(at: At) -> str:
    at.file("slow_app.py", SERVICE)
    with python(at, "-m", "eventbus", "run", "slow_app:bus") as service:
        assert service.stdout is not None
        printed: list[str] = []
        for awaited in ("at work", "stopping; records", "SIGINT came twice"):
            while not printed or awaited not in printed[-1]:
                line = service.stdout.readline()
                assert line, printed
                printed.append(line.strip())
            service.send_signal(signal.SIGINT if awaited != "SIGINT came twice" else signal.SIGKILL)
        service.stdout.close()
    return "; then ".join(line for line in printed if line.startswith("SIGINT"))


STARTING = """
from eventbus import EventBus
bus = EventBus("memory://")

@bus.on_startup
async def begin() -> None:
    import anyio
    print("starting", flush=True)
    await anyio.sleep(600)
"""


@RUN.mistake("SIGTERM before the service has started", "nothing: it ends, and nothing was begun", "SIGTERM", "start")
def ended_at_the_start(at: At) -> str:
    at.file("starting_app.py", STARTING)
    with python(at, "-m", "eventbus", "run", "starting_app:bus") as service:
        assert service.stdout is not None
        while "starting" not in (line := service.stdout.readline()):
            assert line
        service.send_signal(signal.SIGTERM)
        return service.communicate()[0].strip()


@RUN.mistake(
    "`eventbus mirror` of a record that the destination's topic does not take",
    "`eventbus topics alter orders --config max.message.bytes=...` at the destination",
    "orders-0 offset 1 of the source was not copied", "max.message.bytes=1,000", "otherwise start it again",
)  # fmt: skip
def mirrored_record_too_large(at: At) -> str:
    with EventBus("file://./old", auto_create_topics=True).blocking() as bus:
        bus.send("orders", "small", partition=0)
        bus.send("orders", "x" * 2_000, partition=0)
    with EventBus("file://./new").blocking() as bus:
        bus.admin.create_topic("orders", 1, configs={"max.message.bytes": "1000"})
    return at.cli("mirror", "file://./old", "file://./new")


@RUN.mistake("a terminal that knows no UTF-8", "nothing: records are written as the bytes that they are", "Grüße")
def terminal_without_utf8(at: At) -> str:
    with EventBus("file://./data", auto_create_topics=True).blocking() as bus:
        bus.send("orders", "Grüße")
    words = ("-m", "eventbus", "consume", "orders", "--from-beginning", "--max-messages", "1")
    with python(at, *words, PYTHONIOENCODING="ascii", LC_ALL="C") as ascii_only:
        return ascii_only.communicate()[0].strip()


SECTIONS = (MACHINE, RUN)
