"""What `mkdocs build` needs beyond mkdocs.yml.

DESIGN.md, CONTRIBUTING.md and CHANGELOG.md are at the root of the checkout, and are pages of the site too. The API
reference has a page per package, with the names of its ``__all__``. A link to a file that is no page (a test, an
example) leads to the repository if ``repo_url`` is set; else its text stays without a link. `tests/test_links.py`
checks that such files exist.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
FROM_ROOT = {f"internals/{name}": ROOT / name for name in ("DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md")}
PACKAGES = ("eventbus", "serdes", "outbox", "dlq", "schema_registry", "spark_sinks")
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, path in FROM_ROOT.items():
        files.append(File.generated(config, uri, content=path.read_text("utf-8")))
    for package in PACKAGES:
        files.append(File.generated(config, f"reference/api/{package}.md", content=_api_page(package)))
    return files


def _api_page(package: str) -> str:
    module = importlib.import_module(package)
    names = sorted(name for name in module.__all__ if not name.startswith("_"))
    return "\n\n".join([f"# {package}", module.__doc__ or "", *(f"::: {package}.{name}" for name in names)]) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    source = FROM_ROOT.get(uri, Path(config.docs_dir) / uri)

    def resolved(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[1]))
        to = next((uri for uri, path in FROM_ROOT.items() if path == target), None)
        if to is None and target.is_relative_to(config.docs_dir):
            to = target.relative_to(config.docs_dir).as_posix()
        if to is not None:
            return f"]({os.path.relpath(to, Path(uri).parent)}{match[2] or ''})"
        if config.repo_url:
            return f"]({config.repo_url.rstrip('/')}/blob/main/{target.relative_to(ROOT).as_posix()})"
        return "](-)"

    return re.sub(r"\[([^\]]*)\]\(-\)", r"\1", LINK.sub(resolved, markdown))
