"""The client matrix: which client proved which feature against ``eventbus serve``, as a table for pages."""

from __future__ import annotations

import pytest

from tests.clients.fleet import CLIENTS, FEATURES

KCAT = "kcat 1.7 (librdkafka 2.0)"
PROVED_BY = {
    "test_it_produces_and_consumes": (KCAT, "produce"),
    "test_it_compresses": (KCAT, "compression"),
    "test_it_consumes_in_a_group": (KCAT, "group"),
}
"""Tests of single clients that fill a cell."""

BEGIN, END = "<!-- client matrix: made from the tests' results -->", "<!-- end of the client matrix -->"

CLAIMED = {(f"{client.name} {client.version}", feature) for client in CLIENTS for feature in client.features} | {
    *PROVED_BY.values()
}
"""Every cell that some test fills."""


def cell_of(item: pytest.Item) -> tuple[str, str] | None:
    """The cell that a test fills, if it fills one."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "client" in parameters and "feature" in parameters:
        client = parameters["client"]
        return f"{client.name} {client.version}", parameters["feature"]
    return PROVED_BY.get(getattr(item, "originalname", None) or item.name)


def render(proved: set[tuple[str, str]]) -> str:
    """The table: a row for each client, a column for each feature."""
    names = dict.fromkeys([*(f"{client.name} {client.version}" for client in CLIENTS), KCAT])
    lines = ["| client | " + " | ".join(FEATURES.values()) + " |", "|--|" + "--|" * len(FEATURES)]
    for name in names:
        cells = ["yes" if (name, feature) in proved else "" for feature in FEATURES]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
