"""What a bus and its handlers promise, told before anything runs, and what in their settings contradicts what.

``examine(facts_of(bus))`` asks nobody: facts (`facts`), gathered from a bus (`gather`) and, if wanted, from its log
(`connected`), become promises (`promises`) and findings (`findings`), which are told as text (`text`) or JSON.
"""

from __future__ import annotations

from eventbus.doctor.facts import Facts
from eventbus.doctor.gather import facts_of
from eventbus.doctor.report import Finding, HandlerReport, Report, examine

__all__ = ["Facts", "Finding", "HandlerReport", "Report", "examine", "facts_of"]
