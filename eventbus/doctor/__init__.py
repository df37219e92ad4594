"""Report the guarantees of a bus and its handlers before it runs, and contradictions in its settings.

``examine(facts_of(bus))`` sends no requests: facts (`facts`), gathered from a bus (`gather`) and optionally from its
log (`connected`), become promises (`promises`) and findings (`findings`), shown as text (`text`) or JSON.
"""

from __future__ import annotations

from eventbus.doctor.facts import Facts
from eventbus.doctor.gather import facts_of
from eventbus.doctor.report import Finding, HandlerReport, Report, examine

__all__ = ["Facts", "Finding", "HandlerReport", "Report", "examine", "facts_of"]
