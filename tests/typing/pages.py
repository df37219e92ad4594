"""The Python blocks of README.md and docs/ as modules that a type checker reads.

The rules for a block are those of `tests.test_readme`. A block with ``<!-- not run: ... -->`` is left out, and so is one
that is wrong on purpose: ``<!-- not typed: REASON -->``. All modules are in one folder, so that one process checks all
of them. A module of a page is named after the page: ``shop.py`` of guide.md is ``guide_shop.py``, also where it is
imported.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_readme import PAGES, blocks_of


def write_modules(folder: Path) -> dict[str, tuple[str, int]]:
    """Write all modules into ``folder``. Return the page of each, and how many lines its first line is down the page."""
    written: dict[str, tuple[str, int]] = {}
    for page in PAGES:
        blocks = [one for one in blocks_of(page.read_text("utf-8")) if one.kind == "python"]
        blocks = [one for one in blocks if not one.mark.startswith(("not run:", "not typed:"))]
        prefix = page.stem.replace("-", "_").lower()
        names = {match[1] for one in blocks if (match := re.match(r"# ([\w/]+)\.py\n", one.body))}
        modules = {name.replace("/", "."): f"{prefix}_{name.replace('/', '_')}" for name in names}
        code, down = "", 0
        for position, block in enumerate(blocks):
            is_more = block.mark == "continues"
            code, down = (code + block.body, down) if is_more else (block.body, block.line)
            if blocks[position + 1 :] and blocks[position + 1].mark == "continues":
                continue
            match = re.match(r"# ([\w/]+)\.py\n", code)
            name = modules[match[1].replace("/", ".")] if match else f"{prefix}_line_{down}"
            for module, renamed in modules.items():
                code = re.sub(rf"^(\s*from ){re.escape(module)}( import )", rf"\1{renamed}\2", code, flags=re.M)
                code = re.sub(rf"^(\s*import ){re.escape(module)}$", rf"\1{renamed} as {module}", code, flags=re.M)
            (folder / f"{name}.py").write_text(code, "utf-8")
            written[f"{name}.py"] = (page.name, down)
    return written
