"""What the drivers share: each is a program that plays one scenario with one client and prints what it saw as JSON.

    python confluent.py produce '{"bootstrap": "127.0.0.1:9092", "topic": "t", "count": 100}'

tests/clients/test_clients.py says what every scenario must show.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

Scenario = Callable[..., dict[str, Any]]

LIMIT_S = 60
SHRINKS = 20
"""A short text so many times in a row becomes smaller with every codec, also alone in its batch: a client sends a batch
that does not as it is, and which records come into one batch is chance."""


def until(done: Callable[[], object], turn: Callable[[], object]) -> None:
    """Call ``turn`` (which polls with a time limit of its own) until ``done``.

    Raises:
        TimeoutError: it is not done after 30 s.
    """
    limit = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > limit:
            raise TimeoutError(f"still waiting after {LIMIT_S} s")
        turn()


class Security(NamedTuple):
    """How a client gets into a server that wants TLS and SASL."""

    mechanism: str
    username: str
    password: str
    ca: str
    """PEM file of whom to trust."""


def main(scenarios: dict[str, Scenario], secure: Callable[[Security], None]) -> None:
    """Plays the scenario that the command line names. ``secure`` is told first, if it is a secured server's."""
    name, text = sys.argv[1:]
    arguments = json.loads(text)
    security = arguments.pop("security", None)
    if security:
        secure(Security(**security))
    print(json.dumps(scenarios[name](**arguments)), flush=True)
