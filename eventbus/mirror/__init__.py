"""Copy a log to another log: from a directory to a Kafka cluster, between clusters, and back.

`Mirror` is the API; ``eventbus mirror`` runs it from a shell. Records are read committed and written in transactions
that also contain the mapping of offsets. So nothing is lost or doubled wherever it is interrupted, and the offsets of
groups can be translated exactly.
"""

from eventbus.mirror.mirror import Mirror
from eventbus.mirror.plan import TopicPlan
from eventbus.mirror.progress import GroupProgress, PartitionProgress, Progress
from eventbus.mirror.verify import PartitionCheck

__all__ = ["GroupProgress", "Mirror", "PartitionCheck", "PartitionProgress", "Progress", "TopicPlan"]
