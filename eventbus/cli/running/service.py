"""One service in this process: its bus from the first signal that may come to the exit code."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.running.exit_codes import CUT_OFF, STOPPED, by_signal
from eventbus.cli.running.startup import Startup
from eventbus.cli.shell import run_async
from eventbus.errors import StoppedBySignal

if TYPE_CHECKING:
    from eventbus import EventBus

logger = logging.getLogger("eventbus.bus_run")


def run_bus(
    bus: EventBus, startup: Startup, on_running: Callable[[], object] = lambda: None, *, stays: bool = False
) -> int:
    """Run it until a signal; the exit code. Raises what ended it, and what stopped a handler of it.

    ``on_running``: called once the bus has started. ``stays``: also when every handler has stopped.
    """

    import anyio

    has_started = False

    async def main() -> None:
        nonlocal has_started
        with anyio.CancelScope() as scope:
            startup.cancels(scope)
            async with bus:
                has_started = True
                startup.stops(bus)
                on_running()
                await bus.run(ends_with_handlers=not stays)

    try:
        run_async(main)
    except StoppedBySignal as error:
        logger.info("%s", error)
        return by_signal(error.number)
    if not has_started:
        return stopped_in_startup(startup)
    if bus.failure is not None:
        raise bus.failure  # a partition stood still: whoever supervises this process should know
    if bus.context.outcome.cut_off:
        logger.info(
            "stopped; records at work were cancelled, for they were not finished within %g s: they are handled again "
            "after the next start (exit code %d)", bus.context.drain_timeout_ms / 1000, CUT_OFF,
        )  # fmt: skip
        return CUT_OFF
    logger.info("stopped")
    return STOPPED


def stopped_in_startup(startup: Startup) -> int:
    """A signal came before there was anything to stop."""
    name = "a signal" if startup.number is None else startup.number.name
    logger.info("%s: stopped before the bus had started", name)
    return STOPPED


def spell_out_what_stdout_lacks(out: Output) -> None:
    """A handler's ``print`` must not fail, and stop its partition, because of the terminal's encoding."""
    encoding = getattr(sys.stdout, "encoding", None) or ""
    if encoding.lower().replace("-", "").replace("_", "") in ("utf8", "utf8sig", ""):
        return
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    out.note(
        f"warning: stdout is in {encoding}, not in UTF-8: what it lacks is written as \\u2192 and the like; set "
        "PYTHONUTF8=1, or LANG=C.UTF-8"
    )
