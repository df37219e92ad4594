"""Which groups get what is redriven, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from dlq.redrive import Redriven


def add_targets(parser: argparse.ArgumentParser) -> None:
    targets = parser.add_mutually_exclusive_group()
    targets.add_argument("--to", metavar="TOPIC", help="to this topic instead, and all groups that read it")
    targets.add_argument(
        "--whole-topic", action="store_true", help="to the topic it came from, and all groups that read it"
    )


def where_to(done: Redriven) -> str:
    """`` to orders``, `` to group billing through retry.billing``; nothing for several topics."""
    if len(done.topics) != 1:
        return ""
    topic = next(iter(done.topics))
    return f" to group {next(iter(done.groups))} through {topic}" if len(done.groups) == 1 else f" to {topic}"


def also_to(done: Redriven) -> str:
    """Return the other groups that get the letters, for a question; or nothing."""
    others = sorted({group for groups in done.other_groups.values() for group in groups})
    return f", also to {_groups(others)}" if others else ""


def reach_notes(done: Redriven) -> list[str]:
    """Sentences about groups that get the letters without having failed, and about those that do not run."""
    notes: list[str] = []
    for topic, groups in sorted(done.other_groups.items()):
        notes.append(f"{topic} is also read by {_groups(groups)}. All of its readers get the letters")
    if done.idle_groups:
        verb = "does" if len(done.idle_groups) == 1 else "do"
        notes.append(f"{_groups(done.idle_groups)} {verb} not run now. Letters wait in the retry topic until then")
    return notes


def as_options(text: str) -> str:
    """Return the words of the API as those of the command line."""
    words = (
        ("to='", "--to '"), ("to=", "--to"), ("allow=", "--allow"), ("max_hops", "--max-hops"),
        ("whole_topic=True", "--whole-topic"),
    )  # fmt: skip
    for of_api, ours in words:
        text = text.replace(of_api, ours)
    return text


def _groups(names: list[str] | tuple[str, ...]) -> str:
    return f"{'group' if len(names) == 1 else 'groups'} {', '.join(names)}"
