"""A bus's metrics for Prometheus: the text format 0.0.4, and a collector for users of prometheus_client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.client.metrics import Sample
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus
    from eventbus.client.metrics import BusMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `exposition`."""

_ESCAPED_IN_LABELS = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_ESCAPED_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_OF_HISTOGRAMS = re.compile(r"_(?:bucket|sum|count)\Z")


class Family(msgspec.Struct, frozen=True):
    """All samples of one metric, the unit of ``# HELP`` and ``# TYPE``."""

    name: str
    """The metric's name; for a histogram without ``_bucket``, ``_sum`` and ``_count``."""
    kind: str
    help: str
    samples: list[Sample]


def families(samples: Iterable[Sample]) -> list[Family]:
    """Group samples by metric, in order of first occurrence: the format requires each metric in a single block."""
    found: dict[str, Family] = {}
    for sample in samples:
        name = _OF_HISTOGRAMS.sub("", sample.name) if sample.kind == "histogram" else sample.name
        family = found.get(name)
        if family is None:
            family = found[name] = Family(name, sample.kind, sample.help, [])
        family.samples.append(sample)
    return list(found.values())


def exposition(metrics: BusMetrics | Iterable[Sample]) -> str:
    """Return the metrics of a bus (``bus.metrics()``) as a page for Prometheus; serve it as `CONTENT_TYPE`."""
    return "".join(_lines(families(_samples_of(metrics))))


def _samples_of(metrics: BusMetrics | Iterable[Sample]) -> Iterable[Sample]:
    from eventbus.client.metrics import BusMetrics

    return metrics.samples() if isinstance(metrics, BusMetrics) else metrics


def _lines(all_of_them: Iterable[Family]) -> Iterator[str]:
    for family in all_of_them:
        if family.help:
            yield f"# HELP {family.name} {family.help.translate(_ESCAPED_IN_HELP)}\n"
        yield f"# TYPE {family.name} {family.kind}\n"
        for sample in family.samples:
            yield f"{sample.name}{_braces(sample.labels)} {_number(sample.value)}\n"


def _braces(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPED_IN_LABELS)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    """Format a number for Go: integers without a point, and NaN and infinities by their names there."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


# prometheus_client ---------------------------------------------------------------------------------------------------


class Collector:
    """Exports a bus's metrics to prometheus_client's registries: they are computed at every scrape.

    It works from other threads too: prometheus_client's HTTP server has a thread, and queries the bus on its event
    loop.
    """

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus

    def describe(self) -> list[Any]:
        """Return nothing: the metrics depend on the bus and change while it runs."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield metrics as prometheus_client's objects. None while the bus does not run."""
        client = _prometheus_client()
        for family in families(_metrics_of(self._bus).samples()):
            metric = client.Metric(_base_name(family), family.help or family.name, family.kind)
            for sample in family.samples:
                metric.add_sample(sample.name, sample.labels, sample.value)
            yield metric


def register(bus: EventBus, registry: Any = None) -> Callable[[], None]:
    """Register a bus's metrics with a registry of prometheus_client, by default the global one.

    Call the returned function to remove them. Raises ConfigError without prometheus_client, ValueError for a collector
    that is already registered.
    """
    client = _prometheus_client()
    chosen = client.REGISTRY if registry is None else registry
    collector = Collector(bus)
    chosen.register(collector)
    return lambda: chosen.unregister(collector)


def _metrics_of(bus: EventBus) -> BusMetrics:
    """Return the metrics, from any thread."""
    from eventbus.client.metrics import BusMetrics

    try:
        return bus.metrics()
    except ConfigError:  # in another thread than the bus's
        if not bus.is_running:
            return BusMetrics()
        return bus.blocking().metrics()


def _base_name(family: Family) -> str:
    """Return the name without ``_total``, which prometheus_client adds itself."""
    return family.name.removesuffix("_total") if family.kind == "counter" else family.name


def _prometheus_client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise ConfigError(
            "the registry of prometheus_client needs the library: pip install prometheus-client "
            "(eventbus.telemetry.prometheus.exposition(bus.metrics()) makes the page without it)"
        ) from error
    return prometheus_client
