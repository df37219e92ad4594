"""One log copied to another: from a directory to a Kafka cluster, between clusters, and back.

`Mirror` is the door; ``eventbus mirror`` is it from a shell. Records are read committed and written in transactions
that also carry which offset became which: so nothing is lost and nothing doubled wherever it is interrupted, and the
offsets of groups can be translated exactly.
"""

from eventbus.mirror.mirror import Mirror
from eventbus.mirror.plan import TopicPlan
from eventbus.mirror.progress import GroupProgress, PartitionProgress, Progress
from eventbus.mirror.verify import PartitionCheck

__all__ = ["GroupProgress", "Mirror", "PartitionCheck", "PartitionProgress", "Progress", "TopicPlan"]
