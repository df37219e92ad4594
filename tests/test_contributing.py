"""What CONTRIBUTING.md and the workflows name must exist: files, folders, make targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8") if (ROOT / "CONTRIBUTING.md").exists() else ""
COMMANDS = [PAGE, *(file.read_text(encoding="utf-8") for file in (ROOT / ".github").rglob("*.yml"))]

pytestmark = pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="the wheel's tests run outside the checkout")


def test_each_path_exists() -> None:
    paths = re.findall(r"`([\w./]+/[\w./]*)`|\]\(([\w./]+)\)| (tests/\S+\.py)", PAGE)
    named = [next(filter(None, groups)) for groups in paths]
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for text in COMMANDS for target in re.findall(r"make ([a-z-]+)", text)}
    assert named and named <= targets


def test_the_supported_pythons_are_tried() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tried = set(re.findall(r'"(3\.\d+)"', (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")))
    assert set(re.findall(r"Python :: (3\.\d+)", project)) <= tried
