"""``GET /metrics``: a few counters in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schema_registry.http.app import RegistryApp


def render(app: RegistryApp) -> bytes:
    registry = app.registry
    lines = [
        "# HELP schema_registry_requests_total Requests answered, by endpoint, method and status.",
        "# TYPE schema_registry_requests_total counter",
    ]
    lines += [
        f'schema_registry_requests_total{{endpoint="{endpoint}",method="{method}",status="{status}"}} {count}'
        for (method, endpoint, status), count in sorted(app.answered.items())
    ]
    lines += [
        "# HELP schema_registry_ready Whether the registry has read its log and serves it.",
        "# TYPE schema_registry_ready gauge",
        f"schema_registry_ready {int(registry.is_ready)}",
    ]
    return "\n".join([*lines, ""]).encode()
