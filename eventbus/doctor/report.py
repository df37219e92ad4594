"""Facts to a report: what each handler promises, and what was found."""

from __future__ import annotations

from typing import Literal

import msgspec

from eventbus.doctor import promises
from eventbus.doctor.facts import Facts, HandlerFacts

Severity = Literal["error", "warning", "info"]
"""It will not start, or loses or doubles records against what was asked for; probably not meant; good to know."""


class Finding(msgspec.Struct, frozen=True):
    """Something to look at."""

    severity: Severity
    code: str
    where: str
    """A handler, a topic, a setting."""
    text: str
    """What it is, and how to change it."""


class HandlerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one handler promises."""

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
    """Of the process: "before" its handler, "in" it, "after" it."""
    rebalance: str
    commits: str


class Report(msgspec.Struct, frozen=True):
    """What the doctor says."""

    url: str
    durability: str
    handlers: list[HandlerReport]
    findings: list[Finding]


def examine(facts: Facts) -> Report:
    """Pure: the same facts, the same report."""
    from eventbus.doctor.findings import findings_of

    return Report(facts.url, promises.durability(facts), [_handler(one) for one in facts.handlers], findings_of(facts))


def _handler(one: HandlerFacts) -> HandlerReport:
    return HandlerReport(
        name=one.name,
        place=one.place,
        reads=one.reads,
        publishes=one.publishes,
        group=one.group,
        delivery=promises.delivery(one),
        order=promises.order(one),
        duplicates=promises.duplicates(one),
        failure=promises.failure(one),
        crash=promises.crash(one),
        rebalance=promises.rebalance(one),
        commits=promises.commits(one),
    )
