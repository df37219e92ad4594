"""The registry over HTTP. Needs the extra ``registry`` (starlette, uvicorn).

::

    app = create_app(bus)                       # an ASGI app: mount it anywhere, under any prefix
    async with HttpServer(app, port=8081): ...  # or serve it alone
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from schema_registry.http.app import RegistryApp as RegistryApp
    from schema_registry.http.app import create_app as create_app
    from schema_registry.http.auth import Access as Access
    from schema_registry.http.auth import Credentials as Credentials
    from schema_registry.http.auth import Users as Users
    from schema_registry.http.server import HttpServer as HttpServer

_HOMES = {
    "app": ("RegistryApp", "create_app"),
    "auth": ("Access", "Credentials", "Users"),
    "server": ("HttpServer",),
}
_find, __dir__ = lazy_names(globals(), _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _find(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"a registry over HTTP needs a library that is not installed ({error.name}): "
            'pip install "eventbus-log[registry]"',
            name=error.name,
        ) from None
