"""Ids that are drawn by chance: every text of one can be written behind an option of a command."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.broker import Broker, BrokerConfig
from eventbus.log import storage as storage_module
from eventbus.log.storage import FileStorage, MemoryStorage
from eventbus.protocol import ZERO_UUID, random_uuid, uuid_bytes, uuid_text

METADATA_TOPIC = (1).to_bytes(16, "big")
LIKE_AN_OPTION = uuid_bytes("-" + "A" * 21)
GOOD = uuid_bytes("_" + "A" * 21)
REFUSED = (ZERO_UUID, METADATA_TOPIC, LIKE_AN_OPTION)


@pytest.mark.parametrize("refused", REFUSED, ids=uuid_text)
def test_what_kafka_gives_to_nobody_is_drawn_again(refused: bytes) -> None:
    drawn = iter([refused, refused, GOOD])
    assert random_uuid(lambda: next(drawn)) == GOOD


@given(st.binary(min_size=16, max_size=16))
def test_all_else_is_taken_as_it_comes_and_can_be_an_argument(data: bytes) -> None:
    drawn = iter([data, GOOD])
    made = random_uuid(lambda: next(drawn))
    assert made == (GOOD if data in REFUSED[:2] or uuid_text(data)[0] == "-" else data)
    assert uuid_bytes(uuid_text(made)) == made
    parser = ArgumentParser()
    parser.add_argument("--topic-id")
    assert parser.parse_args(["--topic-id", uuid_text(made)]).topic_id == uuid_text(made)


def test_a_broker_s_ids_are_such() -> None:
    drawn = iter([*REFUSED, GOOD])
    broker = Broker.open(MemoryStorage(), BrokerConfig(), now_ms=0, new_id=lambda: next(drawn))
    assert broker.cluster_id == uuid_text(GOOD)


def test_a_directory_s_ids_are_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([*REFUSED, GOOD])

    def urandom(size: int) -> bytes:
        return next(drawn)[:size]

    monkeypatch.setattr(storage_module.os, "urandom", urandom)
    assert FileStorage(str(tmp_path)).unique_id() == uuid_text(GOOD)
