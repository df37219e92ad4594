"""The report of `eventbus.testing.crash_points`, with advice for each finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "lost", "repeated", "missing_output", "doubled_output", "half_done", "state", "not_committed", "failed", "stuck"
]

_MOST_ROWS = 40


class Finding(NamedTuple):
    """A fault found after the process ended at some instant."""

    kind: Kind
    at: str
    """The instant of the end: "killed after handler bill(orders-0@2)"."""
    where: str
    """The handler, the topic or the group."""
    which: str
    """The record or the output."""
    what: str
    """The fault in words."""
    advice: str
    """Advice how to avoid it."""
    is_of_several_ends: bool = False
    """True if the process ended twice in this run."""

    def __str__(self) -> str:
        return f"{self.at}: {self.where}: {self.which} {self.what}. {self.advice}"


class CrashReport:
    """The outcome of all runs. ``print(report)`` shows a table; the ``assert_`` methods are for tests."""

    def __init__(self, findings: list[Finding], *, runs: int, instants: int, not_reached: int, seconds: float) -> None:
        self.findings = findings
        self.runs = runs
        """The number of runs in which the process ended."""
        self.instants = instants
        """The number of instants of the run without a crash."""
        self.not_reached = not_reached
        """The number of runs in which the instant was not reached: the order of events varies occasionally."""
        self.seconds = seconds

    def _of(self, *kinds: Kind) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind in kinds]

    @property
    def lost(self) -> list[Finding]:
        """Records that were never handled completely, and never will be."""
        return self._of("lost")

    @property
    def repeated(self) -> list[Finding]:
        """Records that were handled more than once, or were begun a second time."""
        return self._of("repeated")

    @property
    def doubled_outputs(self) -> list[Finding]:
        """Outputs that readers see more often than without a crash."""
        return self._of("doubled_output")

    @property
    def missing_outputs(self) -> list[Finding]:
        """Outputs that readers never see."""
        return self._of("missing_output")

    @property
    def half_done(self) -> list[Finding]:
        """Records of which readers see only some outputs, permanently or until the next start."""
        return self._of("half_done")

    @property
    def state(self) -> list[Finding]:
        """Ends after which ``state()`` differs from that without a crash."""
        return self._of("state")

    @property
    def failed(self) -> list[Finding]:
        """Restarts that did not finish: an error, or offsets that were never committed."""
        return self._of("failed", "stuck", "not_committed")

    def assert_no_loss(self) -> None:
        """Assert that every record was handled completely, its outputs exist, and every restart finished."""
        self._assert(("lost", "missing_output", "failed", "stuck", "not_committed"), "records were lost")

    def assert_exactly_once(self) -> None:
        """Assert that readers see every output once, and related outputs all or none. For outputs only: see `state`."""
        kinds: tuple[Kind, ...] = (
            "lost", "missing_output", "doubled_output", "half_done", "failed", "stuck", "not_committed",
        )  # fmt: skip
        self._assert(kinds, "outputs are not there exactly once")

    def assert_no_repeats(self) -> None:
        """Assert that no record was begun twice: only at-most-once delivery guarantees that, at the price of `lost`."""
        self._assert(("repeated",), "records were handled again")

    def assert_same_state(self) -> None:
        """Assert that ``state()`` was always the same as without a crash."""
        self._assert(("state", "failed", "stuck"), "the state is not what it is without a crash")

    def _assert(self, kinds: tuple[Kind, ...], what: str) -> None:
        found = self._of(*kinds)
        if found:
            raise AssertionError(f"{what}:\n\n{self._table(found)}")

    def __str__(self) -> str:
        return self._table(self.findings)

    def __repr__(self) -> str:
        return f"<crash report: {self.runs} runs, {len(self.findings)} finding(s)>"

    def _table(self, findings: list[Finding]) -> str:
        head = f"{self.runs} ends at {self.instants} instants, {self.seconds:.1f} s"
        if not findings:
            return f"{head}: nothing to report"
        rows = _rows(findings)
        width = min(max(len(at) for at, _ in rows[:_MOST_ROWS]), 60)
        lines = [f"{head}: {_summary(findings)}", ""]
        lines += [f"{at:<{width}}  {what}" for at, what in rows[:_MOST_ROWS]]
        if len(rows) > _MOST_ROWS:
            lines.append(f"... and {len(rows) - _MOST_ROWS} rows more")
        lines.append("")
        lines += [f"- {advice}" for advice in dict.fromkeys(finding.advice for finding in findings)]
        return "\n".join(lines)


def _rows(findings: list[Finding]) -> list[tuple[str, str]]:
    """Return a row for each end and its effect; two ends in a row are shown only if they differ from a single end."""
    rows: dict[tuple[str, str, str], dict[str, None]] = {}
    of_one_end = {(one.kind, one.where, one.which) for one in findings if not one.is_of_several_ends}
    for finding in findings:
        if not finding.is_of_several_ends or (finding.kind, finding.where, finding.which) not in of_one_end:
            rows.setdefault((finding.at, finding.where, finding.what), {})[finding.which] = None
    return [
        (at, f"{where}: {', '.join(filter(None, which))} {what}" if any(which) else f"{where}: {what}")
        for (at, where, what), which in rows.items()
    ]


def _summary(findings: Iterable[Finding]) -> str:
    counts = Counter(finding.kind.replace("_", " ") for finding in findings)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def difference(before: Counter[Any], after: Counter[Any]) -> str:
    """Describe the difference between two multisets."""
    parts: list[str] = []
    if less := before - after:
        parts.append(f"without {_some(less)}")
    if more := after - before:
        parts.append(f"with {_some(more)} more")
    return " and ".join(parts)


def _some(counts: Counter[Any]) -> str:
    texts = [f"{value!r:.60}" + (f" x{count}" if count > 1 else "") for value, count in list(counts.items())[:3]]
    return ", ".join(texts) + (f" (and {len(counts) - 3} more)" if len(counts) > 3 else "")
