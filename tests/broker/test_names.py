from __future__ import annotations

import pytest

from eventbus.broker.names import check_not_internal, check_topic_name, collision_warning
from eventbus.errors import InvalidTopic


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "...", "__mine", "-", "x" * 249])
def test_legal_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "x" * 250, "a b", "a/b", "a\\b", "gr\u00f6\u00dfe", "a\n", "a:b", "\u0661"]
)
def test_illegal_names(name: str) -> None:
    with pytest.raises(InvalidTopic, match="1 to 249 of"):
        check_topic_name(name)


def test_errors_show_the_wrong_letters() -> None:
    with pytest.raises(InvalidTopic, match="' ' '/'"):
        check_topic_name("a/b c")


def test_internal_names_are_kept() -> None:
    for name in ("__consumer_offsets", "__cluster_metadata", "__transaction_state"):
        with pytest.raises(InvalidTopic, match="internal: it cannot be deleted"):
            check_not_internal(name, "deleted")
    check_not_internal("__schemas", "deleted")


def test_collisions() -> None:
    assert collision_warning("a.b", ["a_b", "c"]) is not None
    assert collision_warning("a_b", ["a.b"]) is not None
    assert collision_warning("a.b", ["a.b", "a.c", "ab"]) is None
