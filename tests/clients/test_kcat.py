"""kcat, of Debian: librdkafka 2.0.2, an old one that reads the broker's features off its version ranges."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.clients.conftest import Server, or_skip
from tests.clients.jars import NotAvailableError
from tests.clients.stored import stored_codecs

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clients")]

Kcat = Callable[..., str]


def path() -> str:
    found = shutil.which("kcat")
    if found is None:
        raise NotAvailableError("there is no kcat on this machine (on Debian: apt install kcat)")
    return found


@pytest.fixture
def kcat(served: Server) -> Kcat:
    program = or_skip(path)

    def kcat(*arguments: str, stdin: str = "") -> str:
        command = [program, "-b", served.bootstrap, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    return kcat


def test_it_lists_the_cluster(kcat: Kcat, served: Server, name: str, create: Callable[..., str]) -> None:
    create(name, 3)
    (broker,) = json.loads(kcat("-L", "-J", "-t", name))["brokers"]
    assert broker == {"id": 1, "name": served.bootstrap}
    (topic,) = json.loads(kcat("-L", "-J", "-t", name))["topics"]
    assert [partition["leader"] for partition in topic["partitions"]] == [1, 1, 1]
    assert f'topic "{name}" with 3 partitions' in kcat("-L")


def test_it_produces_and_consumes(kcat: Kcat, name: str, create: Callable[..., str]) -> None:
    create(name)
    kcat("-P", "-t", name, "-K:", "-H", "h=1", stdin="a:one\nb:two\n")
    shown = kcat("-C", "-t", name, "-e", "-q", "-f", "%p %o %k %s %h\n")
    assert shown.splitlines() == ["0 0 a one h=1", "0 1 b two h=1"]
    assert kcat("-C", "-t", name, "-o", "-1", "-c", "1", "-q") == "two\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_it_compresses(kcat: Kcat, served: Server, name: str, create: Callable[..., str], codec: str) -> None:
    """Produce told from version 3, or FindCoordinator from 1, and it would silently send uncompressed."""
    create(name)
    kcat("-P", "-t", name, "-z", codec, stdin="".join(f"{'value ' * 20}{i}\n" for i in range(50)))
    assert stored_codecs(served.logs / f"{name}-0") == {codec}
    assert len(kcat("-C", "-t", name, "-e", "-q").splitlines()) == 50


def test_it_consumes_in_a_group(kcat: Kcat, name: str, create: Callable[..., str], fill: Callable[..., None]) -> None:
    create(name)
    fill(name, *"abc")
    settings = ("-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=500")
    assert kcat("-G", name, name, "-e", "-q", *settings).splitlines() == list("abc")
    fill(name, "d")
    assert kcat("-G", name, name, "-e", "-q", *settings).splitlines() == ["d"]


def test_it_finds_offsets_by_time(kcat: Kcat, name: str, create: Callable[..., str], fill: Callable[..., None]) -> None:
    create(name)
    fill(name, *"abc")
    assert re.search(rf"{name} \[0\] offset 0\b", kcat("-Q", "-t", f"{name}:0:1"))
