"""What a probe is answered, from how a bus stands: Kubernetes's three questions, and no I/O.

live: would a restart help? ready: does it work? startup: has it begun to? The first two are asked all the time, the
last one until it was answered once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from eventbus.client.health import BusHealth, BusPhase

Probe = Literal["live", "ready", "startup"]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How what is asked stands, as far as it is known."""

    phase: BusPhase
    health: BusHealth | None = None
    """The last that was heard; None: nothing yet."""
    unanswered_ms: int = 0
    """For how long it has not answered; 0: it has just now."""
    patience_ms: int = 60_000
    """After so long without an answer nothing will come by itself (``wedged_after_ms``)."""


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
    """Of the bus: ok, starting, degraded, failed; or the phase that it is in: closing, stopped."""
    reason: str
    handlers: tuple[HandlerReason, ...] = ()
    parts: tuple[PartReason, ...] = ()


def answer(probe: Probe, standing: Standing) -> Answer:
    """Whether the probe passes, and why."""
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
    """Its status and reason, whatever is asked."""
    if standing.phase == "starting":
        return "starting", "the bus is starting"
    if standing.phase == "closing":
        return "closing", "the bus is closing: records at work are finished, no others are begun"
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
    """Fails when only a restart helps, or a person. A bus that starts or closes is on its way."""
    if standing.phase != "running":
        return standing.phase != "stopped"
    return said_of(standing)[0] != "failed"


def _ready(standing: Standing) -> bool:
    return standing.phase == "running" and said_of(standing)[0] in ("ok", "degraded")


def _startup(standing: Standing) -> bool:
    """Once it is up, what goes wrong is the others' business."""
    return standing.phase == "closing" or (standing.phase == "running" and said_of(standing)[0] != "starting")


_PASSES: dict[Probe, Callable[[Standing], bool]] = {"live": _live, "ready": _ready, "startup": _startup}
