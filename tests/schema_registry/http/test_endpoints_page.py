"""registry-endpoints.md lists the endpoints, and a story requests each. ``--rewrite`` writes the page."""

from __future__ import annotations

import re
from functools import cache

import pytest

from schema_registry.http.endpoints import ENDPOINTS, Endpoint
from tests.named import check_named, find_page
from tests.schema_registry.http.opinions import opinions
from tests.schema_registry.http.transcript import FOLDER, stories

PAGE = find_page("registry-endpoints.md")
ELSEWHERE = {
    "GET /metrics": "tests/schema_registry/http/test_app.py::test_metrics",
    "GET /openapi.json": "tests/schema_registry/http/test_app.py::test_the_description_is_served",
}
HEAD = """\
# Endpoints of the schema registry

Confluent's HTTP API, as `schema_registry/http/endpoints.py` routes it. `python -m pytest
tests/schema_registry/http/test_endpoints_page.py --rewrite` writes this page. `tests/schema_registry/http/stories/` has
requests to each endpoint with their responses, and [Schemas](../how-to/schemas.md) describes how to run the server.

Encryption keys (`/dek-registry`) and exporters (`/exporters`) do not exist: 404 with an error body.
"""


@cache
def asked() -> frozenset[str]:
    """The endpoints that a story requests."""
    patterns = [(each, re.compile(re.sub(r"\\{\w+\\}", "[^/]*", re.escape(each.path)) + "/?")) for each in ENDPOINTS]
    found: set[str] = set()
    for path in FOLDER.glob("*.txt"):
        for request in (each for story in stories(path) for _, requests in story.requests() for each in requests):
            for endpoint, pattern in patterns:
                if request.method == endpoint.method and pattern.fullmatch(request.target.partition("?")[0]):
                    found.add(key(endpoint))
                    break  # the first, as the router does
    return frozenset(found)


def key(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def rendered() -> str:
    lines = [HEAD, "| endpoint | what it does | query |", "|---|---|---|"]
    for endpoint in ENDPOINTS:
        query = ", ".join(f"`{each.name}`" for each in endpoint.query)
        lines.append(f"| `{key(endpoint)}` | {endpoint.summary} | {query} |")
    return "\n".join([*lines, ""])


def test_the_page_is_what_the_table_says(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(rendered(), "utf-8")
    assert PAGE.read_text("utf-8") == rendered()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=key)
def test_every_endpoint_is_asked(endpoint: Endpoint) -> None:
    if key(endpoint) in ELSEWHERE:
        check_named(ELSEWHERE[key(endpoint)])
    else:
        assert key(endpoint) in asked()


def test_each_difference_from_karapace_has_a_reason() -> None:
    """Karapace's status codes are a second opinion: `opinions` has the reason for each difference."""
    assert [each for each in opinions() if each.ours != each.theirs and each.reason is None] == []
