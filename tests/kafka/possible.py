"""Promises of the kit that kafka:// can keep, and what keeps librdkafka from the others."""

from __future__ import annotations

from eventbus.testing.conformance import promises_for
from tests.kafka.targets import OnNode

_STICKY = "librdkafka assigns, and has no eager sticky assignor: 'cooperative-sticky' is what it has of that kind"
IMPOSSIBLE = {
    "each_partition_has_one_reader (sticky)": _STICKY,
    "what_a_member_leaves_goes_to_the_others_from_its_last_commit (sticky)": _STICKY,
    "a_joiner_repeats_only_what_was_not_committed (sticky)": _STICKY,
    "an_assignor_of_ones_own_is_asked": "librdkafka assigns, in C: it has no door for assignors of one's own",
    "timestamps_come_back": "librdkafka takes timestamp 0 for 'now': the first millisecond of 1970 is refused",
}
"""By the name of the promise: what keeps librdkafka from it. Each is refused in so many words, never done otherwise."""
OF_ONE_BROKER = {
    "topics_survive_a_restart": "leaders move to other brokers meanwhile, and a description that was compared says so",
}
POSSIBLE = [promise for promise in promises_for(OnNode) if promise.name not in IMPOSSIBLE]
LEFT_ALONE = [promise for promise in POSSIBLE if not promise.needs]
