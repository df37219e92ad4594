"""ListTransactions (key 66): all transactional ids, or those with some states, producers or durations.

v2, which selects ids by a regular expression in RE2's syntax, is not served: `TopicPattern` is bounded only for topic
names, and ids may be longer.
"""

from __future__ import annotations

from eventbus.coordinator.requests import TransactionListing
from eventbus.coordinator.transaction_states import DEAD, STORED_STATES
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType

_State = m.ListTransactionsResponse.TransactionState

_STATES = frozenset(state.title for state in (*STORED_STATES, DEAD)) | {"PrepareEpochFence"}


def list_transactions(call: Call, request: m.ListTransactionsRequest) -> None:
    unknown = [state for state in request.state_filters if state not in _STATES]
    states = set(request.state_filters).difference(unknown)
    producer_ids = set(request.producer_id_filters)
    found = [
        listing
        for listing in call.node.broker.transactions.list()
        if (not request.state_filters or listing.state in states)
        and (not producer_ids or listing.producer_id in producer_ids)
        and (request.duration_filter < 0 or _is_open_for(call, listing, request.duration_filter))
        and call.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, listing.transactional_id)
    ]
    call.reply(
        m.ListTransactionsResponse(
            unknown_state_filters=unknown,
            transaction_states=[
                _State(
                    transactional_id=listing.transactional_id,
                    producer_id=listing.producer_id,
                    transaction_state=listing.state,
                )
                for listing in found
            ],
        )
    )


def _is_open_for(call: Call, listing: TransactionListing, duration_ms: int) -> bool:
    start_ms = call.node.broker.transactions.describe(listing.transactional_id).start_ms
    return start_ms >= 0 and call.node.clock() - start_ms > duration_ms


API = Api(66, "ListTransactions", 0, 1, list_transactions)
