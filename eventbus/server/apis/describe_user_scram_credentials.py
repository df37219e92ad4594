"""DescribeUserScramCredentials (key 50): the users with SCRAM credentials, and their mechanisms (KIP-554).

Needs DESCRIBE on the cluster.
"""

from __future__ import annotations

from eventbus.coordinator.credentials import ScramMechanism
from eventbus.coordinator.security import DUPLICATE_RESOURCE, RESOURCE_NOT_FOUND
from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import check_cluster, error_of
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation


def describe_user_scram_credentials(call: Call, request: m.DescribeUserScramCredentialsRequest) -> None:
    check_cluster(call, Operation.DESCRIBE)
    known = call.node.broker.security.scram_users()
    if not request.users:
        call.reply(
            m.DescribeUserScramCredentialsResponse(
                error_message=None, results=[_result(user, known[user]) for user in known]
            )
        )
        return
    names = [user.name for user in request.users]
    results: list[m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = []
    for name in dict.fromkeys(names):
        error: KafkaError | None = None
        if names.count(name) > 1:
            error = error_of(
                DUPLICATE_RESOURCE,
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
            )
        elif name not in known:
            error = error_of(RESOURCE_NOT_FOUND, f"Attempt to describe a user credential that does not exist: {name}")
        results.append(_result(name, known.get(name, {}), error))
    call.reply(m.DescribeUserScramCredentialsResponse(error_message=None, results=results))


def _result(
    user: str, credentials: dict[ScramMechanism, int], error: KafkaError | None = None
) -> m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult:
    if error is not None:
        return m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
            user=user, error_code=error.code, error_message=str(error), credential_infos=[]
        )
    infos = [
        m.DescribeUserScramCredentialsResponse.CredentialInfo(mechanism=mechanism, iterations=iterations)
        for mechanism, iterations in credentials.items()
    ]
    return m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
        user=user, error_message=None, credential_infos=infos
    )


API = Api(50, "DescribeUserScramCredentials", 0, 0, describe_user_scram_credentials)
