"""The audit finds what it is there to find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.outbox.bank.books import Books, bank, unsettled, wrong

pytestmark = pytest.mark.system


def fair() -> Books:
    """One transfer has arrived, one is between its credit and its account, one still in the outbox."""
    transfers = [{"id": id, "source": "ada", "target": "bob", "cents": 5} for id in ("done", "credited")]
    credits = [{"id": id, "account": "bob", "cents": 5} for id in ("done", "credited")]
    accounts = dict.fromkeys(bank.CUSTOMERS, bank.CENTS) | {"ada": bank.CENTS - 15, "bob": bank.CENTS + 5}
    return Books(
        money=len(bank.CUSTOMERS) * bank.CENTS,
        accounts=accounts,
        on_its_way={"credited", "asked"},
        rows={"transfers": Counter(["asked"]), "credits": Counter(), "receipts": Counter(["done"])},
        records={"transfers": transfers, "credits": credits, "receipts": []},
    )


ASKED = {"done", "credited", "asked"}


def test_fair_books() -> None:
    assert list(wrong(fair(), ASKED)) == []
    assert len(list(unsettled(fair()))) == 6


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda books: books._replace(money=books.money + 5), "cents"),
        (lambda books: books.records["transfers"].append(books.records["transfers"][0]), "published 2 times"),
        (lambda books: books.records["credits"].append(books.records["credits"][0]), "published 2 times"),
        (lambda books: books.rows["receipts"].update(["done"]), "stands there 2 times"),
        (lambda books: books.rows["transfers"].clear(), "is lost"),
        (lambda books: books.on_its_way.remove("asked"), "never left an account"),
        (lambda books: books.records["credits"].pop(), None),
        (lambda books: books.records["transfers"].pop(), "was not asked for"),
        (lambda books: books.records["credits"].pop(0), "without a credit"),
        (lambda books: books.rows["receipts"].clear(), "receipt False"),
        (lambda books: books.rows["receipts"].update(["credited"]), "receipt True"),
    ],
)
def test_spoiled_books(spoil: Callable[[Books], Books | None], said: str | None) -> None:
    books = fair()
    spoiled = spoil(books)
    found = list(wrong(spoiled if isinstance(spoiled, Books) else books, ASKED))
    assert any(said in each for each in found) if said else not found
