"""mistakes.md: each mistake is made, and what is said of it names what is wrong, where, and how it is mended.

``python -m pytest tests/test_mistakes.py --rewrite`` writes the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mistakes import declaring, failing, running, using
from tests.mistakes.kit import Mistake, message_of
from tests.named import find_page

pytestmark = pytest.mark.system

PAGE = find_page("mistakes.md")
SECTIONS = (*declaring.SECTIONS, *using.SECTIONS, *failing.SECTIONS, *running.SECTIONS)
MISTAKES = [mistake for section in SECTIONS for mistake in section.mistakes]


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What was said of each so far."""
    return {}


def cell(message: str) -> str:
    """For a table: what is known besides is left out, as are further lines."""
    line = re.sub(r"(known are|it has) [a-z_]+, .*", r"\1 ...", message.splitlines()[0])
    return "`" + line.replace("`", "'").replace("|", "\\|") + "`"


def row(mistake: Mistake, message: str) -> str:
    return f"| {mistake.wrote} | {cell(message)} | {mistake.fix} |"


@pytest.mark.filterwarnings("ignore:coroutine 'clean_logs' was never awaited:RuntimeWarning")  # the disk is full
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_what_is_said(mistake: Mistake, tmp_path: Path, told: dict[str, str], rewrite: bool) -> None:
    message = told[mistake.name] = message_of(mistake, tmp_path)
    missing = [part for part in mistake.says if part not in message]
    assert not missing, f"{missing} is not in {message!r}"
    assert rewrite or row(mistake, message) in PAGE.read_text("utf-8"), (
        f"mistakes.md has another text than {cell(message)}: `python -m pytest tests/test_mistakes.py --rewrite`"
    )


def test_the_page_has_them_all(told: dict[str, str], rewrite: bool) -> None:
    """Behind the others, whose messages it writes down."""
    if rewrite:
        PAGE.write_text(render(told), "utf-8")
    rows = re.findall(r"^\| (?!what|---)(.*?) \| `.*` \| (.*?) \|$", PAGE.read_text("utf-8"), re.M)
    assert rows == [(mistake.wrote, mistake.fix) for mistake in MISTAKES]
    assert len(rows) >= 50
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)


def render(told: dict[str, str]) -> str:
    lines = [
        "# Mistakes, and what is said of them",
        "",
        f"The {len(MISTAKES)} most likely ones. Each is made by a test, and the message is what came; long lists of",
        "names that are known are left out here. Drawn from `tests/mistakes/`.",
    ]
    for section in SECTIONS:
        lines += ["", f"## {section.title}", "", "| what one writes | what one gets | what is right |", "|---|---|---|"]
        lines += [row(mistake, told[mistake.name]) for mistake in section.mistakes]
    return "\n".join(lines) + "\n"
