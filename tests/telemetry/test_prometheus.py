"""The page of metrics, read by prometheus_client's parser; and its registries."""

from __future__ import annotations

import math
import sys
import threading
from urllib.request import urlopen

import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from eventbus import EventBus
from eventbus.client.metrics import BusMetrics, Kind, Sample
from eventbus.errors import ConfigError
from eventbus.telemetry.prometheus import CONTENT_TYPE, exposition, register
from tests.telemetry.everything import everything

pytestmark = pytest.mark.system

Read = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(page: str) -> Read:
    """Every sample on a page, by name and labels; each at most once."""
    found: Read = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def as_read(samples: list[Sample]) -> Read:
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples}


def test_every_sample_is_read_back_as_it_was() -> None:
    page = exposition(everything())
    assert read(page) == as_read(everything())
    assert page.endswith("\n") and "\n\n" not in page
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"


def test_every_metric_has_its_type_and_says_what_it_means() -> None:
    kinds: dict[str, Kind] = {one.name: one.kind for one in everything()}
    for family in text_string_to_metric_families(exposition(everything())):
        assert family.documentation.endswith("."), family.name
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            assert kinds[sample.name] == family.type


def test_samples_are_named_as_prometheus_wants_them() -> None:
    for one in everything():
        assert one.name.startswith("eventbus_") and one.name == one.name.lower()
        assert one.name.endswith("_total") == (one.kind == "counter"), one.name
        assert one.name.endswith(("_bucket", "_sum", "_count")) == (one.kind == "histogram"), one.name
        assert not any(unit in one.name for unit in ("_ms", "milli", "_kb"))
        assert all(isinstance(value, str) for value in one.labels.values())


def test_a_histograms_buckets_are_cumulative_and_end_with_all() -> None:
    found = read(exposition(everything()))
    for name, labels in [key for key in found if key[0].endswith("_count")]:
        base = name.removesuffix("_count")
        buckets = [
            (float(dict(of)["le"]), value)
            for (bucket, of), value in found.items()
            if bucket == f"{base}_bucket" and set(labels) == {pair for pair in of if pair[0] != "le"}
        ]
        counts = [value for _, value in sorted(buckets)]
        assert counts == sorted(counts) and counts[-1] == found[name, labels]
        assert max(le for le, _ in buckets) == math.inf


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=20)


@given(TEXT, TEXT, st.one_of(st.integers(-(2**60), 2**60), st.floats()))
def test_labels_helps_and_values_of_any_kind_are_written_so_that_they_are_read_back(
    label: str, help: str, value: float
) -> None:
    (family,) = text_string_to_metric_families(exposition([Sample("eventbus_a", {"x": label}, value, "gauge", help)]))
    (sample,) = family.samples
    assert sample.labels == {"x": label}
    assert sample.value == float(value) or (math.isnan(sample.value) and math.isnan(value))


def test_samples_of_one_metric_stand_together_though_they_came_apart() -> None:
    samples = [
        Sample("eventbus_a", {"x": "1"}, 1, "gauge", "A."),
        Sample("eventbus_b", {}, 2, "gauge"),
        Sample("eventbus_a", {"x": "2"}, 3, "gauge", "A."),
    ]
    assert exposition(samples) == (
        "# HELP eventbus_a A.\n# TYPE eventbus_a gauge\n"
        'eventbus_a{x="1"} 1\neventbus_a{x="2"} 3\n'
        "# TYPE eventbus_b gauge\neventbus_b 2\n"
    )


def test_a_bus_that_does_not_run_has_an_empty_page() -> None:
    assert exposition(EventBus("memory://").metrics()) == "" == exposition(BusMetrics())


async def test_a_registry_of_prometheus_client_shows_a_bus() -> None:
    bus, registry = EventBus("memory://"), CollectorRegistry()
    bus.topic("orders", partitions=1)

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None: ...

    unregister = register(bus, registry)
    assert generate_latest(registry) == b""
    async with bus:
        await bus.send("orders", b"a")
        await bus.drain()
        here = read(generate_latest(registry).decode())
        in_a_thread = read((await anyio.to_thread.run_sync(generate_latest, registry)).decode())
        page = read(exposition(bus.metrics()))
    handled = ("eventbus_handler_handled_records_total", (("group", "g"), ("handler", "handle")))
    assert here[handled] == in_a_thread[handled] == page[handled] == 1
    assert here.keys() == page.keys()
    assert generate_latest(registry) == b""
    unregister()
    assert list(registry.collect()) == []


async def test_prometheus_clients_own_server_may_ask_a_running_bus() -> None:
    bus, registry = EventBus("memory://"), CollectorRegistry()
    bus.topic("orders")
    register(bus, registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)

    def ask() -> str:
        assert threading.current_thread() is not thread
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            return answer.read().decode()

    try:
        async with bus:
            page = await anyio.to_thread.run_sync(ask)
    finally:
        await anyio.to_thread.run_sync(server.shutdown)
        server.server_close()
        thread.join()
    assert 'eventbus_topic_partitions{topic="orders"}' in page


def test_a_registry_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match="pip install prometheus-client"):
        register(EventBus("memory://"))
