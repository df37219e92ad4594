"""ApiVersions (key 18): the served APIs and their versions (KIP-35, KIP-511).

A version beyond ours is answered by the connection, in version 0, with this key's own range. One of Kafka's features is
announced: ``transaction.version`` 2, by which clients choose the protocol that gives every transaction a separate epoch
(KIP-890). The other features have no level here, and no client depends on them.
"""

from __future__ import annotations

import re

from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call

_INVALID_REQUEST = 42
TRANSACTION_VERSION = "transaction.version", 2
"""The feature, and its only level."""
_FEATURES_EPOCH = 1
"""The levels never change. Clients ignore features with an epoch below 0 or one that they have already seen."""
_LEVEL_0_FROM = 4
"""Older clients cannot parse a feature that is supported from level 0 on (KAFKA-17011), so it is left out for them."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(call: Call, request: m.ApiVersionsRequest) -> None:
    name, version = request.client_software_name, request.client_software_version
    if call.version >= 3 and not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):  # KIP-511
        call.reply(m.ApiVersionsResponse(error_code=_INVALID_REQUEST))
        return
    name, level = TRANSACTION_VERSION
    supported = m.ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=0, max_version=level)
    finalized = m.ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
    call.reply(
        m.ApiVersionsResponse(
            api_keys=call.node.api_ranges(),
            supported_features=[supported] if call.version >= _LEVEL_0_FROM else [],
            finalized_features_epoch=_FEATURES_EPOCH,
            finalized_features=[finalized],
        )
    )


API = Api(18, "ApiVersions", 0, 4, api_versions, before_authentication=True)
