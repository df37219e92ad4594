"""``eventbus serve --registry-port`` and ``eventbus schema serve``: what they say, refuse, and let in."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.cli.app import run
from schema_registry.client import RegistryClient
from schema_registry.http.embedded_server import EmbeddedRegistry
from serdes.errors import SchemaRegistryError
from serdes.registry import SchemaText
from tests.warm import commands as warm

pytestmark = pytest.mark.system

TEXT = SchemaText('"int"')


@contextmanager
def serving(*arguments: str) -> Iterator[dict[str, str]]:
    """A process of its own and what it said of itself. It must end in order."""
    command = [warm.python(), "-m", "eventbus", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert line, process.stderr and process.stderr.read()
            yield json.loads(line)
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "stopped\n")


@contextmanager
def asking(url: str, **options: object) -> Iterator[RegistryClient]:
    client = RegistryClient(url, **options)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    file, key = folder / "server.pem", folder / "server.key"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(file)]
    subprocess.run(make, check=True, capture_output=True)
    file.write_text(file.read_text("ascii") + key.read_text("ascii"), "ascii")
    return file


def test_beside_the_log_and_alone(tmp_path: Path) -> None:
    """What one process has registered the next one serves, and the log of a Kafka is one like any other."""
    log = str(tmp_path / "log")
    with serving("serve", log, "--port", "0", "--registry-port", "0", "--auto-create") as told:
        assert told["registry"].startswith("http://127.0.0.1:")
        with asking(told["registry"]) as client:
            first = client.register("s", TEXT)
        kafka = f"kafka://{told['bootstrap']}"
        with serving("schema", "serve", "--url", kafka, "--port", "0") as other, asking(other["registry"]) as client:
            assert client.latest("s") == first
            second = client.register("t", SchemaText('"long"'))
            assert second.id == first.id + 1
        with asking(told["registry"]) as client:
            assert client.by_id(second.id).text == SchemaText('"long"')
    with (
        serving("schema", "serve", "--url", f"file://{log}", "--port", "0") as told,
        asking(told["registry"]) as client,
    ):
        assert client.request("GET", "/subjects") == ["s", "t"]


async def test_a_registry_that_cannot_start_leaves_the_log_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, beside = f"file://{tmp_path}", EmbeddedRegistry()
    parser = argparse.ArgumentParser()
    beside.add_arguments(parser)
    parser.set_defaults(insecure=False)
    async with EventBus(url) as bus:
        await bus.admin.create_topic("_schemas", configs={"cleanup.policy": "delete"})
        async with beside.open(parser.parse_args(["--registry-port", "0"]), url, {}) as served:
            with asking(served["registry"], timeout=0.5) as client:
                with pytest.raises(SchemaRegistryError, match=r"Leader not known.*cleanup\.policy=delete"):
                    await anyio.to_thread.run_sync(client.register, "s", TEXT)
                await bus.admin.alter_configs("_schemas", {"cleanup.policy": "compact"})
                assert (await anyio.to_thread.run_sync(client.register, "s", TEXT)).id == 1
    assert "The schema registry cannot start, and the log is served without it. topic '_schemas' has" in caplog.text


def test_users_and_certificates(tmp_path: Path, certificate: Path) -> None:
    users = tmp_path / "users"
    users.write_text("alice: secret\nbob: secret, read\n", "utf-8")
    options = ["--users", str(users), "--tls-cert", str(certificate), "--tls-ca", str(certificate), "--port", "0"]
    with serving("schema", "serve", "--url", f"file://{tmp_path}/log", *options) as told:
        assert told["registry"].startswith("https://127.0.0.1:")
        known = {"ca_file": str(certificate), "certificate_file": str(certificate)}
        with asking(told["registry"], auth=("alice", "secret"), **known) as alice:
            assert alice.register("s", TEXT).id == 1
        with asking(told["registry"], auth=("bob", "secret"), **known) as bob:
            assert bob.by_id(1).text == TEXT
            with pytest.raises(SchemaRegistryError) as refused:
                bob.register("t", TEXT)
            assert refused.value.status == 403
        with asking(told["registry"], auth=("bob", "guess"), **known) as stranger:
            with pytest.raises(SchemaRegistryError) as refused:
                stranger.by_id(1)
            assert refused.value.status == 401
        for options in ({"ca_file": str(certificate)}, {}):  # without a certificate; without knowing the server's
            with asking(told["registry"], auth=("alice", "secret"), timeout=0.5, **options) as nobody:
                with pytest.raises(SchemaRegistryError) as refused:
                    nobody.by_id(1)
                assert refused.value.status == 0


def test_a_registry_to_read(tmp_path: Path) -> None:
    with (
        serving("schema", "serve", "--url", f"file://{tmp_path}/log", "--port", "0", "--read-only") as told,
        asking(told["registry"]) as client,
    ):
        with pytest.raises(SchemaRegistryError, match="read-only") as refused:
            client.register("s", TEXT)
        assert refused.value.error_code == 42205


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["serve", "--registry-host", "0.0.0.0"], 2, "--registry-host needs --registry-port"),
        (["serve", "--registry-user", "a:b"], 2, "--registry-user needs --registry-port"),
        (["serve", "--registry-port", "0", "--registry-host", "0.0.0.0"], 1, "without TLS and users"),
        (["schema", "serve", "--port", "0", "--host", "0.0.0.0"], 1, "without TLS and users: give it a certificate"),
        (["schema", "serve", "--port", "0", "--host", "0.0.0.0", "--user", "a:b"], 1, "without TLS:"),
        (["schema", "serve", "--port", "0", "--user", "hidden"], 2, "a user is of the form NAME:PASSWORD"),
        (["schema", "serve", "--port", "0", "--user", "a:hidden", "--users", "f"], 2, "leave one out"),
        (["schema", "serve", "--port", "0", "--users", "nowhere"], 1, "users file nowhere"),
        (["schema", "serve", "--port", "0", "--tls-key", "k.pem"], 2, "needs its certificate too"),
        (["schema", "serve", "--port", "0", "--tls-cert", "nowhere.pem"], 1, "PEM files"),
        (["schema", "serve", "--port", "-1"], 2, "--port"),
        (["serve", "--registry-port", "99999"], 1, "ports end at 65535"),
    ],
)
def test_what_is_refused(
    options: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    port = ["--port", "0"] if options[0] == "serve" else []
    assert run([*options, *port]) == code
    told = capsys.readouterr().err
    assert said in told and "hidden" not in told and "Traceback" not in told


def test_a_library_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("app", "server"):
        monkeypatch.delitem(sys.modules, f"schema_registry.http.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.routing", None)
    assert run(["serve", "--port", "0", "--registry-port", "0"]) == 1
    assert 'pip install "eventbus-log[registry]"' in capsys.readouterr().err
