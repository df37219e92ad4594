"""metrics.md lists what the code emits, no more and no less."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from eventbus.telemetry.prometheus import families
from tests.named import find_page
from tests.telemetry.everything import everything

pytestmark = pytest.mark.system

PAGE = find_page("metrics.md")
PAGES = [PAGE, find_page("telemetry.md")]
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->"


def table() -> str:
    """A list for each group of metrics. Labels that all metrics of the group have stand above it."""
    parts: list[str] = []
    for _, group in groupby(families(everything()), lambda family: family.name.split("_")[1]):
        found = [(family, [name for name in family.samples[0].labels if name != "le"]) for family in group]
        common = [name for name in found[0][1] if all(name in labels for _, labels in found)]
        rows = [f"With {' '.join(f'`{name}`' for name in common) or 'no label'}:", ""]
        for family, labels in found:
            cell = " ".join(f"`{name}`" for name in (family.name, *(name for name in labels if name not in common)))
            rows.append(f"- {cell}: {'Histogram. ' * (family.kind == 'histogram')}{family.help}")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


def test_the_table_is_what_the_code_emits(rewrite: bool) -> None:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    shown, end, after = rest.partition(END)
    assert end, f"{PAGE.name} has no {BEGIN} and {END}"
    if rewrite:
        PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", "utf-8")
        return
    assert shown == table(), "`python -m pytest tests/telemetry/test_page.py --rewrite` writes it"


def test_every_metric_that_the_pages_name_is_emitted() -> None:
    named = {family.name for family in families(everything())}
    emitted = named | {one.name for one in everything()}
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    spoken = set(re.findall(r"\b(eventbus_[a-z0-9]+_[a-z0-9_]+)\b", text))
    assert spoken - emitted == set() and len(spoken) > 40


def test_every_cause_of_a_rebalance_is_on_the_page() -> None:
    from typing import get_args

    from eventbus.coordinator.group_rules import Cause

    text = PAGE.read_text("utf-8")
    assert [cause for cause in get_args(Cause) if f"`{cause}`" not in text] == []
