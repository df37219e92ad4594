"""The requests and answers of stories/*.txt, one registry for each story.

``--rewrite`` writes down what is answered now: read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus import EventBus
from schema_registry import Registry
from schema_registry.http import create_app
from tests.schema_registry.http.asgi import ask
from tests.schema_registry.http.transcript import FOLDER, Story, rendered, shown, stories

pytestmark = pytest.mark.system

PATHS = sorted(FOLDER.glob("*.txt"))
STORIES = [pytest.param(path, story, id=f"{path.stem}: {story.name}") for path in PATHS for story in stories(path)]


async def told(story: Story) -> list[tuple[str, str]]:
    """Each request and its answer."""
    async with EventBus("memory://") as bus, Registry(bus) as registry:
        app = create_app(registry)
        found: list[tuple[str, str]] = []
        for _, requests in story.requests():
            for request in requests:
                answer = await ask(app, request.method, request.target, request.body, request.headers)
                found.append((request.line, shown(answer)))
        return found


@pytest.mark.parametrize(("path", "story"), STORIES)
async def test_requests_are_answered_as_confluent_answers_them(path: Path, story: Story, rewrite: bool) -> None:
    answers = await told(story)
    if rewrite:
        every = stories(path)
        kept = {each.name: each.answers for each in every} | {story.name: [answer for _, answer in answers]}
        path.write_text(rendered(every, kept), "utf-8")
        return
    expected = list(zip((line for line, _ in answers), story.answers, strict=True))
    assert answers == expected


def test_there_are_many() -> None:
    assert sum(len(story.answers) for path in PATHS for story in stories(path)) >= 500
