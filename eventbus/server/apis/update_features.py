"""UpdateFeatures (key 57): the levels of features are fixed here, so every change is refused."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.admin import check_cluster, error_of
from eventbus.server.apis.api_versions import TRANSACTION_VERSION
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation

_INVALID_UPDATE_VERSION = 95


def update_features(call: Call, request: m.UpdateFeaturesRequest) -> None:
    """Return one result for all features, as Kafka 4 does, even in versions whose answer has a result per feature."""
    check_cluster(call, Operation.ALTER)
    names = [update.feature for update in request.feature_updates]
    if names:
        feature, level = TRANSACTION_VERSION
        raise error_of(
            _INVALID_UPDATE_VERSION,
            f"{', '.join(names)}: this server's features cannot be changed. {feature} is always {level}.",
        )
    call.reply(m.UpdateFeaturesResponse(error_message=None))


API = Api(57, "UpdateFeatures", 0, 2, update_features)
