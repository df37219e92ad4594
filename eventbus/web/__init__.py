"""Health and metrics over HTTP: an ASGI app to mount, and a small separate server.

``app.mount("/bus", health_app(bus))`` in FastAPI or Starlette; ``bus.include(HealthServer())`` without them; ``eventbus
run --health-port 8080`` without a line of code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.web.app import health_app as health_app
    from eventbus.web.server import HealthServer as HealthServer

_HOMES = {
    "app": ("health_app",),
    "server": ("HealthServer",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
