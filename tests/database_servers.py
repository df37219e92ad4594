"""PostgreSQL and MariaDB for tests: private servers in folders of their own, on free ports of 127.0.0.1.

    with PostgreSQL() as server:
        create_engine(f"postgresql+psycopg://{server.address}/postgres")
        server.kill()                                # what a crash of the server is to its clients
        server.start()

They are Debian's packages, started as they are. `shared` gives all processes of a test run one server together.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[1]
START_S = 60
STOP_S = 30


class NotInstalledError(Exception):
    """Which package of Debian is missing."""


class Server(ABC):
    """One process with a data folder. ``with`` makes the folder, starts it, stops it and removes the folder."""

    name: ClassVar[str]
    package: ClassVar[str]
    account: ClassVar[str]
    """Who may do everything, without a password; and the system's user it runs as, where the tests run as root."""
    runs_as: ClassVar[str]
    stops_by: ClassVar[signal.Signals]
    dies_by: ClassVar[signal.Signals]

    def __init__(self) -> None:
        """Raises NotInstalledError."""
        self.find()
        self.port = _free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"eventbus-{self.name.lower()}-"))
        self._user = self.runs_as if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The part of a URL between the driver's name and that of a database."""
        return f"{self.account}@127.0.0.1:{self.port}"

    @abstractmethod
    def find(self) -> None:
        """Raises NotInstalledError."""

    @abstractmethod
    def make(self) -> Sequence[str]:
        """The command that fills the data folder."""

    @abstractmethod
    def serve(self) -> Sequence[str]:
        """The command that is the server."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Does it answer?"""

    def start(self) -> None:
        """Begin, or go on with the same data; returns when it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.serve(), cwd="/", user=self._user, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} did not start: {(self.folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.02)  # another process's work: there is nothing to be told by

    def stop(self) -> None:
        """In order: what is committed is on the disk, what is open is rolled back."""
        self._end(self.stops_by)

    def kill(self) -> None:
        """At once, as in a crash: it has its recovery to do when it is started again."""
        self._end(self.dies_by)

    def _end(self, by: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(by)
            process.wait(STOP_S)

    def __enter__(self) -> Server:
        made = subprocess.run(self.make(), cwd="/", user=self._user, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"{self.name}: {made.stdout[-1_000:]}{made.stderr[-1_000:]}")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()  # nobody will read the data
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgreSQL(Server):
    name = "PostgreSQL"
    package = "postgresql"
    account = "eventbus"
    runs_as = "postgres"  # it refuses root
    stops_by = signal.SIGINT
    dies_by = signal.SIGQUIT

    def find(self) -> None:
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
        if not versions:
            raise NotInstalledError(self.package)
        self._bin = versions[-1].parent

    def make(self) -> Sequence[str]:
        initdb = [f"{self._bin}/initdb", "-D", f"{self.folder}/data", "-U", self.account]
        return [*initdb, "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8"]

    def serve(self) -> Sequence[str]:
        # Processes are killed here, never the machine: nothing has to reach a disk.
        settings = ["fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=200"]
        settings += ["max_prepared_transactions=10", "deadlock_timeout=100ms"]
        where = ["-D", f"{self.folder}/data", "-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder)]
        return [f"{self._bin}/postgres", *where, *(f"--{each}" for each in settings)]

    def is_ready(self) -> bool:
        ask = [f"{self._bin}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ask, check=False).returncode == 0


class MariaDB(Server):
    name = "MariaDB"
    package = "mariadb-server-core and mariadb-client-core"
    account = "root"
    runs_as = "root"
    stops_by = signal.SIGTERM
    dies_by = signal.SIGKILL

    def find(self) -> None:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
        server, make = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
        if server is None or make is None or shutil.which("my_print_defaults") is None:  # which the maker calls
            raise NotInstalledError(self.package)
        self._server, self._make = server, make

    def make(self) -> Sequence[str]:
        quiet = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        return [self._make, "--no-defaults", f"--datadir={self.folder}/data", *self._as_user(), *quiet]

    def serve(self) -> Sequence[str]:
        where = [f"--datadir={self.folder}/data", f"--socket={self.folder}/socket", f"--pid-file={self.folder}/pid"]
        listen = ["--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve"]
        # Nothing has to reach a disk. A table that is in use is not waited for all day.
        small = ["--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M", "--performance-schema=off"]
        return [self._server, "--no-defaults", *where, *self._as_user(), *listen, *small, "--lock-wait-timeout=30"]

    def _as_user(self) -> Sequence[str]:
        return [f"--user={self._user}"] if self._user else []

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                return bool(connection.recv(1))  # its greeting
        except OSError:
            return False


class PgBouncer(Server):
    """A proxy of a `PostgreSQL`. Each transaction of its clients is on whichever of its connections is free."""

    name = "PgBouncer"
    package = "pgbouncer"
    account = PostgreSQL.account
    runs_as = PostgreSQL.runs_as  # it refuses root
    stops_by = signal.SIGINT
    dies_by = signal.SIGKILL

    def __init__(self, server: str, connections: int) -> None:
        """``server``: the address of the PostgreSQL. Raises NotInstalledError."""
        super().__init__()
        host, _, port = server.rpartition("@")[2].partition(":")
        settings = {
            "listen_addr": "127.0.0.1", "listen_port": self.port, "unix_socket_dir": "", "auth_type": "any",
            "pool_mode": "transaction", "default_pool_size": connections,
        }  # fmt: skip
        lines = ["[databases]", f"* = host={host} port={port} user={self.account}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        (self.folder / "settings.ini").write_text("\n".join(lines))

    def find(self) -> None:
        found = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
        if found is None:
            raise NotInstalledError(self.package)
        self._program = found

    def make(self) -> Sequence[str]:
        return ["true"]

    def serve(self) -> Sequence[str]:
        return [self._program, f"{self.folder}/settings.ini"]

    def is_ready(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
            return True
        return False


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# one server for all processes of a run -------------------------------------------------------------------------------

SERVERS: dict[str, type[Server]] = {"PostgreSQL": PostgreSQL, "MariaDB": MariaDB}


@contextmanager
def shared(name: str, folder: Path) -> Generator[str]:
    """The address of a server for all who name the same folder: the first of them starts it.

    It ends when the last one has left or died: a keeper, a process of its own, waits for a lock that they all hold.
    Raises NotInstalledError.
    """
    with (folder / f"{name}.users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield _address(name, folder)


def _address(name: str, folder: Path) -> str:
    with (folder / f"{name}.turn").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            return (folder / f"{name}.address").read_text()
        readable, writable = os.pipe()
        with (folder / f"{name}.log").open("ab") as log:
            keeper = [sys.executable, "-m", "tests.database_servers", name, str(folder), str(writable)]
            subprocess.run(
                ["setsid", "--fork", *keeper], cwd=ROOT, pass_fds=[writable], stdout=log, stderr=log, check=True
            )
        os.close(writable)
        with os.fdopen(readable) as pipe:
            answer = pipe.read()
    if answer.startswith("missing "):
        raise NotInstalledError(answer.removeprefix("missing "))
    if not answer:
        raise RuntimeError((folder / f"{name}.log").read_text()[-2_000:])
    return answer


def keep(name: str, folder: Path, writable: int) -> None:
    """Run a server until nobody uses it."""
    address = folder / f"{name}.address"
    with os.fdopen(writable, "w") as pipe, (folder / f"{name}.users").open("a") as users:
        try:
            server = SERVERS[name]()
        except NotInstalledError as missing:
            pipe.write(f"missing {missing}")
            return
        with server:
            address.write_text(server.address)
            pipe.write(server.address)
            pipe.close()
            fcntl.flock(users, fcntl.LOCK_EX)
            address.unlink()


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
