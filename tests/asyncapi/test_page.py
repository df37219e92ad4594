"""The page of a document."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from eventbus import EventBus
from eventbus.asyncapi import asyncapi_document, html_page

pytestmark = pytest.mark.system


class Page(HTMLParser):
    """Tags that are open, ids, links and the text."""

    VOID = ("meta", "link", "br", "th", "td", "tr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_is_well_formed_and_fetches_nothing(shop: EventBus) -> None:
    page = Page(html_page(asyncapi_document(shop, title="Shop & Co")))
    assert page.open == [] and not page.tags & {"script", "link", "img", "iframe"}
    assert page.attributes <= {"lang", "charset", "name", "content", "class", "id", "href"}
    assert len(set(page.ids)) == len(page.ids)
    assert {link.removeprefix("#") for link in page.links} <= {*page.ids}
    assert all(said in page.text for said in ("Shop & Co", "receive.orders.bill", "group: billing", "minimum: 1"))


def test_what_a_docstring_says_is_text(make_shop: Callable[..., EventBus]) -> None:
    document = asyncapi_document(make_shop(), title="<script>1</script>", description='"><img src=x onerror=1>')
    page = Page(html_page(document))
    assert not page.tags & {"script", "img"}
    assert "<script>alert(1)</script>" in page.text and '"><img src=x onerror=1>' in page.text


def test_a_server_is_named(make_shop: Callable[..., EventBus]) -> None:
    bus = make_shop("kafka://a:9092", security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u")
    assert "kafka-secure://a:9092, login: plain" in Page(html_page(asyncapi_document(bus))).text


def test_a_type_is_told_in_words() -> None:
    fields = {
        "tags": ({"type": "object", "additionalProperties": {"type": "integer"}}, "object of integer"),
        "place": ({"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}, "array of (integer, string)"),
        "kind": ({"const": "ü"}, '"ü"'),
        "code": ({"allOf": [{"type": "string"}], "maxLength": 3}, "maxLength: 3"),
    }
    payload = {"type": "object", "properties": {name: schema for name, (schema, _) in fields.items()}}
    channels = {"orders": {"address": "orders", "messages": {"Order": {"payload": payload}}}}
    page = Page(html_page({"asyncapi": "3.0.0", "channels": channels}))
    assert [said for _, said in fields.values() if said not in page.text] == []
