"""Answers to Kubernetes's three probes, from the state of a bus. Pure: no I/O.

live: would a restart help? ready: does it work? startup: has it started? The first two are requested continually, the
last only until it succeeds once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from eventbus.client.health import BusHealth, BusPhase

Probe = Literal["live", "ready", "startup"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a bus, as far as it is known."""

    phase: BusPhase
    health: BusHealth | None = None
    """The last health report; None if there is none yet."""
    unanswered_ms: int = 0
    """How long the bus has not answered; 0 if it just did."""
    patience_ms: int = 60_000
    """After this time without an answer, no answer is expected any more (``wedged_after_ms``)."""


class HandlerReason(msgspec.Struct, frozen=True):
    handler: str
    group: str
    status: str
    reason: str
    lag: int


class PartReason(msgspec.Struct, frozen=True):
    part: str
    status: str
    reason: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of a probe."""

    probe: Probe
    passed: bool
    status: str
    """The status of the bus: ok, starting, degraded, failed; or its phase: closing, stopped."""
    reason: str
    handlers: tuple[HandlerReason, ...] = ()
    parts: tuple[PartReason, ...] = ()


def answer(probe: Probe, standing: Standing) -> Answer:
    """Evaluate a probe, with the reason."""
    status, reason = said_of(standing)
    health = standing.health if standing.phase == "running" else None
    return Answer(
        probe=probe,
        passed=_PASSES[probe](standing),
        status=status,
        reason=reason,
        handlers=()
        if health is None
        else tuple(HandlerReason(one.handler, one.group, one.status, one.reason, one.lag) for one in health.handlers),
        parts=() if health is None else tuple(PartReason(one.part, one.status, one.reason) for one in health.parts),
    )


def said_of(standing: Standing) -> tuple[str, str]:
    """Return status and reason, for any probe."""
    if standing.phase == "starting":
        return "starting", "the bus is starting"
    if standing.phase == "closing":
        return "closing", "the bus is closing: records in flight are finished, no others are begun"
    if standing.phase == "stopped":
        return "stopped", "the bus is not running"
    if standing.unanswered_ms:
        silent = f"the bus has not answered for {standing.unanswered_ms / 1000:.1f} s: its event loop is blocked, or "
        silent += "its log does not answer"
        if standing.unanswered_ms > standing.patience_ms:
            return "failed", silent
        if standing.health is None:
            return "starting", silent
        return standing.health.status, f"{standing.health.reason} ({silent})"
    if standing.health is None:
        return "starting", "the bus has not answered yet"
    return standing.health.status, standing.health.reason


def _live(standing: Standing) -> bool:
    """Fail if only a restart or a person can help. A bus that starts or closes is alive."""
    if standing.phase != "running":
        return standing.phase != "stopped"
    return said_of(standing)[0] != "failed"


def _ready(standing: Standing) -> bool:
    return standing.phase == "running" and said_of(standing)[0] in ("ok", "degraded")


def _startup(standing: Standing) -> bool:
    """Pass once the bus has started; later failures are for the other probes."""
    return standing.phase == "closing" or (standing.phase == "running" and said_of(standing)[0] != "starting")


_PASSES: dict[Probe, Callable[[Standing], bool]] = {"live": _live, "ready": _ready, "startup": _startup}
