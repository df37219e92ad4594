"""Turn facts into a report: each handler's guarantees, and the findings."""

from __future__ import annotations

from typing import Literal

import msgspec

from eventbus.doctor import guarantees
from eventbus.doctor.facts import Facts, HandlerFacts

Severity = Literal["error", "warning", "info"]
"""error: will not start, or breaks a requested guarantee; warning: probably a mistake; info: good to know."""


class Finding(msgspec.Struct, frozen=True):
    """A point to check in the settings or the code."""

    severity: Severity
    code: str
    where: str
    """A handler, a topic, or a setting."""
    text: str
    """The finding, and how to change it."""


class HandlerReport(msgspec.Struct, frozen=True, kw_only=True):
    """The guarantees of one handler."""

    name: str
    place: str
    reads: str
    publishes: str | None
    group: str
    delivery: str
    order: str
    duplicates: str
    failure: str
    crash: dict[str, str]
    """Effects of a crash of the process "before" its handler, "in" it, and "after" it."""
    rebalance: str
    commits: str


class Report(msgspec.Struct, frozen=True):
    """The result of the examination."""

    url: str
    durability: str
    handlers: list[HandlerReport]
    findings: list[Finding]


def examine(facts: Facts) -> Report:
    """Return the report. Pure: equal facts give equal reports."""
    from eventbus.doctor.findings import findings_of

    return Report(
        facts.url, guarantees.durability(facts), [_handler(one) for one in facts.handlers], findings_of(facts)
    )


def _handler(one: HandlerFacts) -> HandlerReport:
    return HandlerReport(
        name=one.name,
        place=one.place,
        reads=one.reads,
        publishes=one.publishes,
        group=one.group,
        delivery=guarantees.delivery(one),
        order=guarantees.order(one),
        duplicates=guarantees.duplicates(one),
        failure=guarantees.failure(one),
        crash=guarantees.crash(one),
        rebalance=guarantees.rebalance(one),
        commits=guarantees.commits(one),
    )
