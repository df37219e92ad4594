"""What a first user of retries and of ``eventbus dlq`` stumbled over."""

from __future__ import annotations

import logging

import anyio
import pytest

from dlq import Retry
from eventbus import EventBus
from eventbus.errors import ConfigError
from tests.dlq.cli.conftest import Cli, Dlq, Spawn, cli, dlq, letter, shop, spawn, write

__all__ = ["Cli", "Spawn", "cli", "dlq", "shop", "spawn"]


def test_letters_do_not_go_where_it_is_kept_what_became_of_letters() -> None:
    with pytest.raises(ConfigError, match="Retry\\(topic='_dlq_state'\\): this topic keeps"):
        Retry(topic="_dlq_state")
    bus = EventBus("memory://")
    with pytest.raises(ConfigError, match="dead_letter='_dlq_state': this topic keeps"):

        @bus.consumer("orders", group="g", retry=1, dead_letter="_dlq_state")
        async def handle(order: str) -> None: ...  # pyright: ignore[reportUnusedFunction]


def test_what_an_error_says_is_one_line_of_the_log_and_obeyed_by_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="g", dead_letter=True)
    async def handle(order: str) -> None:
        raise ValueError(order)

    async def main() -> None:
        async with bus:
            await bus.send("orders", "no\nhandler 'x': all is well \x1b[31m\u202e Grüße")
            await bus.drain()

    with caplog.at_level(logging.ERROR, "dlq"):
        anyio.run(main)
    [line] = [record.getMessage() for record in caplog.records if "goes to dlq.g" in record.getMessage()]
    assert line.endswith("ValueError: no\\nhandler 'x': all is well \\x1b[31m\\u202e Grüße")


def test_a_topic_whose_name_does_not_tell_is_in_the_command_that_is_offered(dlq: Dlq) -> None:
    [_] = write(letter(1, ValueError("no"), topic="failed-orders"))
    said = dlq("list", "failed-orders").err
    command = said.partition("eventbus dlq ")[2].split()
    assert command[:2] == ["show", "failed-orders"]
    assert dlq(*command).code == 0


def test_a_topic_of_dead_letters_is_no_target_and_the_words_are_those_of_the_command_line(shop: Dlq) -> None:
    answer = shop("redrive", "--all", "--to", "dlq.billing", "--dry-run")
    assert answer.code == 1
    assert "--to 'dlq.billing': it holds dead letters" in answer.err
    assert "Name it in --allow" in answer.err


def test_an_edited_letter_does_not_go_to_dead_letters_and_no_option_is_named_that_there_is_not(shop: Dlq) -> None:
    answer = shop("edit", "dlq.billing/0/0", "--value", "{}", "--to", "dlq.billing", "--yes")
    assert answer.err == "error: --to 'dlq.billing': it holds dead letters or retries\n"


def test_an_export_of_letters_that_are_not_there_says_so(shop: Dlq) -> None:
    answer = shop("export", "dlq.billing/0/99")
    assert (answer.code, "there is no dead letter dlq.billing/0/99" in answer.err) == (1, True)
    assert "eventbus dlq list --status all" in shop("export", "--error", "NoSuchError").err


def test_a_header_that_is_not_there(shop: Dlq) -> None:
    [bare] = write(letter(3, ValueError("no"), headers=()))
    assert "it has no headers" in shop("edit", bare, "--no-header", "tenant", "--yes").err


@pytest.mark.system
def test_a_second_edit_says_how_it_is_sent_once_more(shop: Dlq) -> None:
    edit = ("edit", "dlq.billing/0/0", "--value", "{}", "--yes")
    assert shop(*edit).code == 0
    said = shop(*edit).err
    command = said.partition("eventbus dlq ")[2].split()
    assert command == ["reopen", "dlq.billing/0/0", "--status", "edited"]
    assert shop(*command).code == 0
    assert shop(*edit).code == 0


def test_a_rate_that_is_too_high_says_what_the_highest_is(shop: Dlq) -> None:
    assert "below 1,000,000,000" in shop("redrive", "--all", "--rate", "1000000000000").err
