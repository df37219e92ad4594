"""``eventbus docs build``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

SERVICE = """
import msgspec

from eventbus import EventBus

class Order(msgspec.Struct):
    id: str
    amount: int = 1

bus = EventBus("file://./data", service="shop")

@bus.consumer("orders")
async def bill(order: Order) -> None:
    '''Charge for it.'''
"""


@pytest.fixture
def docs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "contract_app.py").write_text(SERVICE)
    yield lambda *args: cli("docs", *args)
    sys.modules.pop("contract_app", None)


def test_build_writes_the_document(docs: Cli, tmp_path: Path) -> None:
    result = docs("build", "contract_app:bus", "--title", "Shop", "--api-version", "2.0.0")
    document = json.loads(result.out)
    assert result.code == 0 and document["info"] == {"title": "Shop", "version": "2.0.0"}
    assert document["operations"]["receive.orders.bill"]["summary"] == "Charge for it."
    result = docs("build", "contract_app:bus", "-o", "shop.json")
    assert (result.out, result.err) == ("", "wrote shop.json (channels: 1, operations: 1)\n")
    assert json.loads((tmp_path / "shop.json").read_text())["info"] == {"title": "shop", "version": "1.0.0"}
    assert not (tmp_path / "data").exists()


def test_build_names_a_kafka_server(docs: Cli) -> None:
    result = docs("build", "contract_app:bus", "--url", "kafka://prod:9092")
    assert json.loads(result.out)["servers"]["kafka"]["host"] == "prod:9092"


def test_build_into_a_directory_that_is_not_there(docs: Cli) -> None:
    result = docs("build", "contract_app:bus", "-o", "nowhere/shop.json")
    assert result.code == 1 and "nowhere/shop.json cannot be written: No such file" in result.err
