"""Format a report as lines of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from eventbus.doctor.report import HandlerReport, Report

_WIDTH = 118
_MARGIN = 14


def lines_of(report: Report) -> Iterator[str]:
    yield f"log  {report.url}"
    yield f"     {report.durability}"
    for one in report.handlers:
        yield ""
        yield from _handler(one)
    if report.findings:
        yield ""
    for finding in report.findings:
        text = f"{finding.severity}  {finding.where}: {finding.text}  [{finding.code}]"
        yield from textwrap.wrap(text, _WIDTH, subsequent_indent="         ", break_on_hyphens=False)
    counts = {severity: sum(one.severity == severity for one in report.findings) for severity in ("error", "warning")}
    yield ""
    yield f"{len(report.handlers)} handler(s), {counts['error']} error(s), {counts['warning']} warning(s)"


def _handler(one: HandlerReport) -> Iterator[str]:
    arrow = f" -> {one.publishes}" if one.publishes else ""
    yield f"{one.name}  {one.reads}{arrow}, group {one.group}" + (f"  ({one.place})" if one.place else "")
    for label, text in (
        ("delivery", one.delivery),
        ("order", one.order),
        ("twice", one.duplicates),
        ("it fails", one.failure),
        ("crash before", one.crash["before"]),
        ("  in it", one.crash["in"]),
        ("  after it", one.crash["after"]),
        ("rebalance", one.rebalance),
        ("commits", one.commits),
    ):
        yield from textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"  {label:<{_MARGIN - 2}}  ",
            subsequent_indent=" " * (_MARGIN + 2),
            break_on_hyphens=False,
        )
