"""Spans as the SDK of OpenTelemetry exports them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from eventbus.telemetry import Tracing


class Spans:
    """What was recorded, in the order in which it ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    def tracing(self) -> Tracing:
        return Tracing(self.provider)

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """In the order in which they began."""
        return sorted((one for one in self.ended if one.name == name), key=lambda one: one.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found

    def tree(self) -> list[str]:
        """Each span's name behind those of its ancestors, in the order in which they began."""
        by_id = {one.context.span_id: one for one in self.ended if one.context is not None}

        def path(one: ReadableSpan) -> list[str]:
            parent = None if one.parent is None else by_id[one.parent.span_id]
            mark = "" if one.status.is_ok or one.status.is_unset else " !"
            return [*([] if parent is None else path(parent)), one.name + mark]

        return [" > ".join(path(one)) for one in sorted(self.ended, key=lambda one: one.start_time or 0)]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def traces(all_of_them: Iterable[ReadableSpan]) -> set[int]:
    """The ids of their traces."""
    return {one.context.trace_id for one in all_of_them if one.context is not None}
