"""Why Karapace answers some requests of the stories with another status than we do (see record_karapace.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.schema_registry.http.transcript import FOLDER, stories

LACKING = "Karapace has no such endpoint, or does not take this parameter"
FOLLOWS = "what went before was refused there, or done there alone"

REASONS: list[tuple[str, str]] = [
    (r"^settings: (mode|import|config of all kinds)", "Karapace's mode and most of its config cannot be set"),
    (r"/(contexts|v1/metadata|associations|health)\b", LACKING),
    (r"/schemas/ids/[^/]+/(subjects|schema|versions)", LACKING),
    (r"/schemas/guids/", LACKING),
    (r"/(metadata\?|metadata )", LACKING),
    (r"/schema(\?deleted=true)? -> 200 (404|500)", LACKING),
    (r"defaultToGlobal", LACKING),
    (r"DELETE /config -> ", LACKING),
    (r"(HEAD|OPTIONS|BREW) | POST /( \{\})? -> ", LACKING),
    (r": POST /compatibility/subjects/s/versions ", LACKING),
    (r"\?verbose=true .* -> 200 (404|422)", LACKING),
    (r"versions/latest one -> 200 404", "a subject without versions takes everything; Karapace wants one"),
    (r" -> \d+ 500$", "Karapace fails"),
    (r" -> 400 422$", "what is no JSON, or of other types, is 400 at Confluent's and 422 at Karapace's"),
    (r" -> 422 404$", "a version that is none is 42202; Karapace looks for it"),
    (r"limit=x|%31|%ff", "Karapace takes what is no number for none, and paths as they are written"),
    (r"Content-Type: APPLICATION/JSON|Accept: .*q=", "headers have no case and may say q=0"),
    (r'unknown": 1}|"id": |"version": 7|ruleSet|"metadata": \[\]', "Karapace passes over what it does not know"),
    (r"PUT /config/s \{.*(full|null)|PUT /config/s \{\}", "a level may be written small, or taken away"),
    (r"schemaType\": \"\"", "an empty schemaType is AVRO"),
    (r"LATEST", "latest is read in any case"),
    (r"deleted=(yes)? a", "what is not true is false, as Java reads a boolean"),
    (r"POST /subjects/s \{", "a lookup of nothing finds nothing"),
    (r"POST /subjects/plain", "the order of a schema's own properties counts unless both were normalized"),
    (r"subjects with odd names", "Karapace takes control characters and reserved names for subjects"),
    (r"ids/1\?subject=:.ctx:a|/subjects/%3A\.%3As|GET /schemas/ids/2 ", "ids count within a context"),
    (r"deleting: ", FOLLOWS),
    (r"DELETE /config/s -> 404 200|GET /subjects/s/versions/2 ", FOLLOWS),
    (r"x. -> 422 409|\\\"x\\\".*-> 422 409", "Karapace does not check this default, and compares"),
    (r"name\": \"\"", "a reference's name may be empty"),
]  # fmt: skip


class Opinion(NamedTuple):
    request: str
    ours: int
    theirs: int

    @property
    def reason(self) -> str | None:
        """Why they differ; None: nobody has looked yet."""
        text = f"{self.request} -> {self.ours} {self.theirs}"
        return next((reason for pattern, reason in REASONS if re.search(pattern, text)), None)


def opinions() -> Iterator[Opinion]:
    recorded: dict[str, list[int]] = json.loads((FOLDER / "karapace.json").read_text("utf-8"))
    for path in sorted(FOLDER.glob("*.txt")):
        for story in stories(path):
            name = f"{path.stem}: {story.name}"
            lines = [request.line for _, requests in story.requests() for request in requests]
            for line, answer, theirs in zip(lines, story.answers, recorded[name], strict=True):
                yield Opinion(f"{name}: {line}", int(answer.split()[0]), theirs)
