"""DescribeLogDirs (key 35): the disk space that each partition uses, and the space left."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.admin import allows_cluster
from eventbus.server.broker_configs import log_directory
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation

_CLUSTER_AUTHORIZATION_FAILED = 31
_UNKNOWN = -1

_Dir = m.DescribeLogDirsResponse.DescribeLogDirsResult


def describe_log_dirs(call: Call, request: m.DescribeLogDirsRequest) -> None:
    if not allows_cluster(call, Operation.DESCRIBE):
        call.reply(m.DescribeLogDirsResponse(error_code=_CLUSTER_AUTHORIZATION_FAILED))
        return
    directory = log_directory(call.node)
    total_bytes, usable_bytes = _space(directory)
    wanted = None if request.topics is None else {one.topic: set(one.partitions) for one in request.topics}
    broker = call.node.broker
    names = broker.list_topics() if wanted is None else sorted(name for name in wanted if broker.has_topic(name))
    topics = [
        m.DescribeLogDirsResponse.DescribeLogDirsTopic(
            name=topic.name,
            partitions=[
                m.DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=one.partition, partition_size=one.size_bytes, offset_lag=0
                )
                for one in topic.partitions
                if wanted is None or one.partition in wanted[topic.name]
            ],
        )
        for topic in broker.describe_topics(names)
    ]
    result = _Dir(log_dir=directory, topics=topics, total_bytes=total_bytes, usable_bytes=usable_bytes)
    call.reply(m.DescribeLogDirsResponse(results=[result]))


def _space(directory: str) -> tuple[int, int]:
    """Return the size of the disk and the bytes available to us; -1 for a log in memory."""
    import shutil

    try:
        usage = shutil.disk_usage(directory)
    except OSError:  # in memory
        return _UNKNOWN, _UNKNOWN
    return usage.total, usage.free


API = Api(35, "DescribeLogDirs", 1, 5, describe_log_dirs)
