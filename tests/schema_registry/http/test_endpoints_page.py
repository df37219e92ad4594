"""registry-endpoints.md says which endpoints there are and which tests ask them. ``--rewrite`` writes it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest

from schema_registry.http.endpoints import ENDPOINTS, Endpoint
from tests.named import check_named, find_page
from tests.schema_registry.http.opinions import differences, opinions
from tests.schema_registry.http.transcript import FOLDER, stories

PAGE = find_page("registry-endpoints.md")
STORIES = "tests/schema_registry/http/test_stories.py::test_requests_are_answered_as_confluent_answers_them"
ELSEWHERE = {
    "GET /metrics": "tests/schema_registry/http/test_app.py::test_metrics",
    "GET /openapi.json": "tests/schema_registry/http/test_app.py::test_the_description_is_served",
}
HEAD = """\
# Endpoints of the schema registry

Confluent's HTTP API; what is asked and answered stands word for word in `tests/schema_registry/http/stories/`. This
page is made from the table that routes requests (`schema_registry/http/endpoints.py`) and from those stories:
`python -m pytest tests/schema_registry/http/test_endpoints_page.py --rewrite`.

What is not here answers 404 with an error body: encryption keys (`/dek-registry`) and exporters (`/exporters`).
"""


def asked() -> tuple[Counter[str], dict[str, list[str]]]:
    """How often the stories ask each endpoint, and in which of them."""
    patterns = [(each, re.compile(re.sub(r"\\{\w+\\}", "[^/]*", re.escape(each.path)) + "/?")) for each in ENDPOINTS]
    count: Counter[str] = Counter()
    where: dict[str, list[str]] = defaultdict(list)
    for path in sorted(FOLDER.glob("*.txt")):
        for story in stories(path):
            for request in (each for _, requests in story.requests() for each in requests):
                for endpoint, pattern in patterns:
                    if request.method == endpoint.method and pattern.fullmatch(request.target.partition("?")[0]):
                        name = key(endpoint)
                        count[name] += 1
                        if f"{path.stem}: {story.name}" not in where[name]:
                            where[name].append(f"{path.stem}: {story.name}")
                        break  # the first, as the router does
    return count, where


def key(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def rendered() -> str:
    count, where = asked()
    lines = [HEAD, "| endpoint | what it does | query | requests | tests |", "|--|--|--|--|--|"]
    for endpoint in ENDPOINTS:
        query = ", ".join(f"`{each.name}`" for each in endpoint.query)
        tests = "; ".join(where.get(key(endpoint), [])) or f"`{ELSEWHERE[key(endpoint)].rpartition('::')[2]}`"
        lines.append(f"| `{key(endpoint)}` | {endpoint.summary} | {query} | {count[key(endpoint)] or ''} | {tests} |")
    every = list(opinions())
    same = sum(each.ours == each.theirs for each in every)
    lines += [
        "", f"A test is a story: `{STORIES}[the story]`.", "", "## A second opinion", "",
        f"A Karapace 6.2 was asked the same {len(every)} requests; {same} of them got the same status. The others:",
        "", "| requests | why |", "|--|--|",
        *(f"| {number} | {reason} |" for reason, number in differences().most_common()), "",
    ]  # fmt: skip
    return "\n".join(lines)


def test_the_page_is_what_the_table_says(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(rendered(), "utf-8")
    assert PAGE.read_text("utf-8") == rendered()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=key)
def test_every_endpoint_is_asked(endpoint: Endpoint) -> None:
    if key(endpoint) in ELSEWHERE:
        check_named(ELSEWHERE[key(endpoint)])
    else:
        assert asked()[0][key(endpoint)]


def test_whoever_differs_has_a_reason() -> None:
    """Karapace's status codes are a second opinion: where ours differ, somebody has thought about it."""
    assert [each for each in opinions() if each.ours != each.theirs and each.reason is None] == []
