"""The commands in the unit files, images and manifests of deploying.md must be ones that `eventbus` accepts."""

from __future__ import annotations

import json
import re

import pytest

from eventbus.cli import app
from eventbus.cli.parser import Parser
from tests.named import find_page

TEXT = find_page("deploying.md").read_text("utf-8")
LISTS = [json.loads(text) for text in re.findall(r"(?:CMD|command:|test:) (\[.*\])", TEXT)]
LINES = [line.split() for line in re.findall(r"^ExecStart=\S*/bin/(eventbus .*)$", TEXT, re.M)]
COMMANDS = [[word for word in words if word != "CMD"][1:] for words in [*LISTS, *LINES]]


def test_all_layouts_are_found() -> None:
    assert [words[0] for words in COMMANDS].count("serve") == 3
    assert {words[0] for words in COMMANDS} == {"run", "serve", "topics", "mirror"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_deployed_command_is_accepted(words: list[str]) -> None:
    parser = Parser(prog="eventbus")
    app._register(words[0], parser.add_subparsers())
    parser.parse_args(words)
