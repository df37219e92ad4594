"""URLs of buses that do not wait for long."""

from __future__ import annotations

QUICK = {
    "heartbeat.interval.ms": "100",
    "session.timeout.ms": "6000",
    "topic.metadata.refresh.interval.ms": "300",
    "fetch.wait.max.ms": "100",
    "coordinator.query.interval.ms": "100",
    "reconnect.backoff.max.ms": "200",
}
"""Each of these takes seconds by default."""


def bus_url(bootstrap: str, **more: str) -> str:
    """Return the URL of a bus; ``more`` are further settings of librdkafka."""
    dotted = {name.replace("_", "."): value for name, value in more.items()}
    settings = "&".join(f"{name}={value}" for name, value in {**QUICK, **dotted}.items())
    return f"kafka://{bootstrap}?{settings}"
