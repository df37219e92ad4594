"""ApiVersions (key 18): what is served, in which versions (KIP-35, KIP-511).

A version beyond ours is answered by the connection, in version 0, with this key's own range. No features are announced:
neither ``transaction.version`` (KIP-890) nor any other has a level here, so clients use the protocols without.
"""

from __future__ import annotations

import re

from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call

_INVALID_REQUEST = 42
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(call: Call, request: m.ApiVersionsRequest) -> None:
    name, version = request.client_software_name, request.client_software_version
    if call.version >= 3 and not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):  # KIP-511
        call.reply(m.ApiVersionsResponse(error_code=_INVALID_REQUEST))
        return
    call.reply(m.ApiVersionsResponse(api_keys=call.node.api_ranges()))


API = Api(18, "ApiVersions", 0, 4, api_versions, before_authentication=True)
