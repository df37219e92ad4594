"""``eventbus serve``: what it says, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

EVENTBUS = (sys.executable, "-m", "eventbus")


@contextmanager
def serving(
    *arguments: str, cwd: Path, port: tuple[str, ...] = ("--port", "0")
) -> Generator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A server in a process of its own, and what it said of itself."""
    environment = {key: value for key, value in os.environ.items() if key != "EVENTBUS_URL"}
    command = [*EVENTBUS, "serve", "--json", *port, *arguments]
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_and_leaves_the_log_in_order(tmp_path: Path, number: signal.Signals, cli: Cli) -> None:
    with serving("data", cwd=tmp_path) as (process, told):
        assert told["url"] == "file://data"
        with connect(told["bootstrap"]) as client:
            process.send_signal(number)
            assert client.recv(1) == b"", "the connection is closed"
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "stopped\n")
    assert cli("log", "verify", "data").code == 0
    assert cli("topics", "list").code == 0, "nobody holds the directory"


@pytest.mark.system
def test_nothing_is_kept_of_an_ephemeral_log(tmp_path: Path) -> None:
    with serving("--ephemeral", cwd=tmp_path) as (_, told):
        connect(told["bootstrap"]).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_the_directory_is_locked_meanwhile_and_the_error_says_what_to_do(tmp_path: Path, cli: Cli) -> None:
    with serving("data", cwd=tmp_path):
        result = cli("topics", "create", "orders")
        assert result.code == 1 and "eventbus serve" in result.err and "--bootstrap-server HOST:PORT" in result.err


@pytest.mark.system
@pytest.mark.parametrize("how", [("--config", "server.properties"), ("server.properties",)], ids=["flag", "as Kafka's"])
def test_a_server_properties_file(tmp_path: Path, how: tuple[str, ...]) -> None:
    """As a flag, and as kafka-server-start.sh takes it."""
    (tmp_path / "server.properties").write_text("log.dirs=kafka-logs\nnode.id=7\nnum.partitions=3\n")
    with serving(*how, cwd=tmp_path) as (process, told):
        assert told["url"] == "file://kafka-logs"
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert "note: node.id means nothing on one node" in err
    assert (tmp_path / "kafka-logs").is_dir()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--host", "0.0.0.0"), 1, "can be reached from other machines, without TLS and SASL"),
        (("--ephemeral", "data"), 2, "--ephemeral keeps nothing"),
        (("--listener", "PLAINTEXT://127.0.0.1:0", "--port", "1"), 2, "--listener says host and port itself"),
        (("--listener", "PLAINTXT://127.0.0.1:0"), 1, "'PLAINTXT' is no security protocol"),
        (("--tls-key", "key.pem"), 2, "need --tls-cert"),
        (("--listener", "SSL://127.0.0.1:0"), 1, "name the certificate it shows"),
        (("--user", "alice"), 2, "NAME:PASSWORD"),
        (("--user", "alice:secret"), 2, "--user needs a listener that asks who a peer is"),
        (("--acls",), 2, "--acls needs a listener that asks"),
        (("--config", "missing.properties"), 2, "missing.properties: No such file"),
        (("--override", "num.partitons=3"), 1, "unknown key 'num.partitons'"),
        (("--override", "num.partitions=0"), 1, "num.partitions='0': a whole number from 1 to 10000"),
        (("--fsync", "never"), 2, "invalid choice"),
        (("--override", "num.partitions=many"), 1, "num.partitions='many': a whole number"),
        (("--url", "kafka://127.0.0.1:1"), 2, "is a server already: name a directory"),
        (("--bootstrap-server", "127.0.0.1:1"), 2, "is a server already: name a directory"),
        (("--port", "65536"), 1, "ports end at 65535"),
        (("--prot", "1"), 2, "eventbus serve: unrecognized arguments: --prot; did you mean '--port'?"),
        (("--tls-cert", "server.pem"), 2, "--tls-cert needs a listener that shows it"),
        (("--super-user", "alice"), 2, "--super-user needs --acls"),
    ],
)
def test_what_cannot_be_is_told(cli: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = cli("serve", *arguments)
    assert (result.code, message in result.err) == (code, True), result.err


@pytest.mark.system
def test_a_server_that_nobody_can_log_in_to_says_so(tmp_path: Path) -> None:
    with serving("data", "--listener", "SASL_PLAINTEXT://127.0.0.1:0", port=(), cwd=tmp_path) as (process, _):
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert "there are no users, so nobody can log in" in err


@pytest.mark.system
def test_where_no_port_is_advertised_it_is_the_listeners(tmp_path: Path) -> None:
    with serving("data", "--advertised", "bus.example.org", cwd=tmp_path) as (_, told):
        host, _, port = told["bootstrap"].rpartition(":")
        assert host == "bus.example.org"
        socket.create_connection(("127.0.0.1", int(port)), timeout=20).close()


def test_passwords_are_never_shown(cli: Cli) -> None:
    result = cli("serve", "--user", ":secret-word", "--port", "0")
    assert result.code == 2 and "secret-word" not in result.err
