"""``eventbus docs build | serve | diff``."""

from __future__ import annotations

import json
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventbus.asyncapi.serving import open_server
from eventbus.errors import ConfigError

Cli = Callable[..., Any]

SERVICE = """
import msgspec

from eventbus import EventBus

class Order(msgspec.Struct):
    id: str
    amount: int = 1

class Strict(msgspec.Struct):
    id: str
    amount: int

bus = EventBus("file://./data", service="shop")
strict = EventBus("file://./data", service="shop")

@bus.consumer("orders")
async def bill(order: Order) -> None:
    '''Charge for it.'''

@strict.consumer("orders", name="bill")
async def bill_strictly(order: Strict) -> None: ...
"""


@pytest.fixture
def docs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "contract_app.py").write_text(SERVICE)
    yield lambda *args: cli("docs", *args)
    sys.modules.pop("contract_app", None)


def test_build_writes_json_or_a_page(docs: Cli, tmp_path: Path) -> None:
    result = docs("build", "contract_app:bus", "--title", "Shop", "--api-version", "2.0.0")
    document = json.loads(result.out)
    assert result.code == 0 and document["info"] == {"title": "Shop", "version": "2.0.0"}
    assert docs("build", "contract_app:bus", "--format", "html").out.startswith("<!doctype html>")
    result = docs("build", "contract_app:bus", "-o", "shop.html")
    assert (result.out, result.err) == ("", "wrote shop.html (channels: 1, operations: 1)\n")
    assert "Charge for it." in (tmp_path / "shop.html").read_text()
    assert not (tmp_path / "data").exists()


def test_build_names_a_kafka_server(docs: Cli) -> None:
    result = docs("build", "contract_app:bus", "--url", "kafka://prod:9092")
    assert json.loads(result.out)["servers"]["kafka"]["host"] == "prod:9092"


def test_build_into_a_directory_that_is_not_there(docs: Cli) -> None:
    result = docs("build", "contract_app:bus", "-o", "nowhere/shop.json")
    assert result.code == 1 and "nowhere/shop.json cannot be written: No such file" in result.err


def test_diff_fails_on_what_breaks(docs: Cli) -> None:
    docs("build", "contract_app:bus", "-o", "old.json")
    result = docs("diff", "old.json", "contract_app:bus")
    assert (result.code, result.out) == (0, "") and result.err == "0 breaking, 0 compatible, 0 info\n"
    result = docs("diff", "old.json", "contract_app:strict")
    assert result.code == 1 and result.err == "1 breaking, 0 compatible, 1 info\n"
    said = "breaking    orders Strict amount: it was optional and is required (received); for producers"
    assert said in result.out.splitlines()
    found = json.loads(docs("diff", "old.json", "contract_app:strict", "--json").out)
    assert {one["severity"] for one in found} == {"breaking", "info"}


def test_diff_tells_what_it_cannot_read(docs: Cli, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text('{"asyncapi": "2.6.0"}')
    assert "is AsyncAPI 2.6.0, not 3" in docs("diff", "two.json", "contract_app:bus").err
    result = docs("diff", "contract_app:bus", "contract_app:bus")
    assert result.code == 2 and "OLD is a document" in result.err


@pytest.mark.system
def test_serve_answers_on_loopback() -> None:
    with open_server("<p>page", '{"asyncapi": "3.0.0"}', 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with urllib.request.urlopen(f"{url}/") as answer:
                assert answer.read() == b"<p>page"
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            with urllib.request.urlopen(f"{url}/asyncapi.json") as answer:
                assert json.load(answer) == {"asyncapi": "3.0.0"}
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{url}/other")
        finally:
            server.shutdown()
            thread.join()


def test_serve_on_a_port_that_is_taken(docs: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = docs("serve", "contract_app:bus", "--port", str(port))
        assert result.code == 1 and f"port {port} cannot be listened on" in result.err
    with pytest.raises(ConfigError, match="port 99999"):
        open_server("", "", 99_999)
