"""AlterUserScramCredentials (key 51): set or remove passwords for SCRAM (KIP-554). Needs ALTER on the cluster.

The client salts the password; do not send it to a listener without TLS on a network that others can read.
"""

from __future__ import annotations

from eventbus.coordinator.acls import known
from eventbus.coordinator.credentials import ScramMechanism
from eventbus.coordinator.security import ScramDeletion, ScramUpsertion
from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import check_cluster
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation


def alter_user_scram_credentials(call: Call, request: m.AlterUserScramCredentialsRequest) -> None:
    deletions = [ScramDeletion(item.name, known(ScramMechanism, item.mechanism)) for item in request.deletions]
    upsertions = [
        ScramUpsertion(
            item.name, known(ScramMechanism, item.mechanism), item.iterations, item.salt, item.salted_password
        )
        for item in request.upsertions
    ]
    try:
        check_cluster(call, Operation.ALTER)
        results = call.node.broker.security.alter_scram_credentials(deletions, upsertions, call.node.clock())
    except KafkaError as error:
        results = {change.user: error for change in (*deletions, *upsertions)}
    call.reply(m.AlterUserScramCredentialsResponse(results=[_result(user, error) for user, error in results.items()]))


def _result(user: str, error: KafkaError | None) -> m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult:
    if error is None:
        return m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(user=user, error_message=None)
    return m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
        user=user, error_code=error.code, error_message=str(error)
    )


API = Api(51, "AlterUserScramCredentials", 0, 0, alter_user_scram_credentials)
