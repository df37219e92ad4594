"""``eventbus spark``: topics into tables at the command line, one module per command."""

from __future__ import annotations

from eventbus.cli.parser import Subcommands, add_actions

COMMANDS = ("land", "status", "verify", "replay_quarantine", "compact", "doctor", "warmup")
"""The modules of this package. Each imports pyspark and pyarrow only when its command runs."""

EPILOG = """\
  eventbus spark land orders ./warehouse/orders                       once, until it is caught up
  eventbus spark land orders delta:./lake/orders --follow             continuously, until Ctrl-C
  eventbus spark verify ./warehouse/orders                            each record is there once, and every gap explained

The log goes first, where it is not ./data (or --url): eventbus spark land kafka://localhost:9092 orders ./orders
"""


def register(subcommands: Subcommands) -> None:
    modules = [f"spark_sinks.cli.{name}" for name in COMMANDS]
    about = "topics into tables: land, status, verify, replay-quarantine, compact, ..."
    add_actions(subcommands, "spark", modules, help=about, epilog=EPILOG)
