"""``eventbus schema``: the registry's command line, one module per command."""

from __future__ import annotations

from eventbus.cli.parser import Subcommands, add_actions

COMMANDS = ("list_subjects", "show", "register_schema", "check", "diff", "delete", "backup", "codegen", "serve")
"""Modules of this package; what is heavy they import when they run."""

EPILOG = """\
where the registry is:
  eventbus schema list                              in the log of --url (default ./data)
  eventbus schema list --registry http://host:8081  over HTTP

as in:
  eventbus schema register orders-value order.avsc
  eventbus schema diff orders-value 1 2
  eventbus schema check shop:bus                    the types in the code against schemas.lock.json, for CI
"""


def register(subcommands: Subcommands) -> None:
    modules = [f"schema_registry.cli.{name}" for name in COMMANDS]
    about = "the schema registry: list, register, check, diff, codegen, serve, ..."
    add_actions(subcommands, "schema", modules, help=about, epilog=EPILOG)
