"""The Python blocks of README.md and docs/ as files that a type checker reads.

The rules for a block are those of `tests.test_readme`; one with ``<!-- not run: ... -->`` is left out. All files are in
one folder, so that one process reads all of them. A module of a page is named after the page: ``shop.py`` of guide.md
is ``guide_shop.py``, also where it is imported. Another block is named after its line in the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_readme import PAGES, blocks_of

LIBRARIES_WITHOUT_TYPES = {
    "alembic": "operations are added to its class at run time",
    "confluent_kafka.schema_registry": "its annotations refuse the calls that its documentation shows",
    "django": "it has no annotations",
}
"""A block that imports one of them is not checked."""

_NAMED = re.compile(r"# ([\w/]+)\.py\n")


def write_blocks(folder: Path) -> None:
    """Write the blocks of all pages into ``folder``."""
    for page in PAGES:
        blocks = [block for block in blocks_of(page.read_text("utf-8")) if block.kind == "python"]
        prefix = page.stem.replace("-", "_").lower()
        names = [match[1].replace("/", ".") for block in blocks if (match := _NAMED.match(block.body))]
        renamed = {name: f"{prefix}_{name.replace('.', '_')}" for name in names}
        code, path = "", folder
        for block in blocks:
            if block.mark.startswith("not run:"):
                continue
            if block.mark == "continues":
                code += block.body
            else:
                match = _NAMED.match(block.body)
                name = renamed[match[1].replace("/", ".")] if match else f"{prefix}_line_{block.line}"
                code, path = block.body, folder / f"{name}.py"
            if not any(re.search(rf"^(from|import) {re.escape(one)}\b", code, re.M) for one in LIBRARIES_WITHOUT_TYPES):
                path.write_text(_with_names_of(renamed, code), "utf-8")


def _with_names_of(renamed: dict[str, str], code: str) -> str:
    """Import the modules of the page by the names that they have in the folder."""
    for module, name in renamed.items():
        code = re.sub(rf"^(\s*from ){re.escape(module)}( import )", rf"\1{name}\2", code, flags=re.M)
        code = re.sub(rf"^(\s*import ){re.escape(module)}$", rf"\1{name} as {module}", code, flags=re.M)
    return code
