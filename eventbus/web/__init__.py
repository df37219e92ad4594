"""Health and metrics over HTTP: an ASGI app to mount, and a small server of its own.

``app.mount("/bus", health_app(bus))`` in FastAPI or Starlette; ``bus.include(HealthServer())`` without them;
``eventbus run --health-port 8080`` without a line of code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventbus.web.app import health_app
    from eventbus.web.server import HealthServer

__all__ = ["HealthServer", "health_app"]

_HOMES = {"HealthServer": "eventbus.web.server", "health_app": "eventbus.web.app"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'eventbus.web' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
