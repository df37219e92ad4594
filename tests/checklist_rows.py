"""What a row of the checklist is."""

from __future__ import annotations

from typing import Literal, NamedTuple

Status = Literal["answered", "partly", "later"]

MARK = {"answered": "yes", "partly": "partly", "later": "later"}


class Row(NamedTuple):
    """One thing looked for."""

    number: int
    item: str
    """In the words of who looks for it."""
    status: Status
    answer: str
    """How, in a line; of what is partly or not there, which part brings it."""
    tests: tuple[str, ...] = ()
    """``path::name`` of test functions, below the root of the checkout."""
    examples: tuple[str, ...] = ()
    """Files of examples/."""
    page: str = ""
    """``guide.md#anchor``: a page of docs/, in whichever folder."""


class Section(NamedTuple):
    """Rows that belong together; all numbers from ``first`` to ``last`` must be there."""

    title: str
    first: int
    last: int
    rows: tuple[Row, ...]
