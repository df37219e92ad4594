"""Combine the outcomes of a record's outputs."""

from __future__ import annotations

from eventbus.backends.delivery import Delivery
from eventbus.client.handling.partition_driver import Outcome
from eventbus.errors import EventBusError


def joined(outputs: list[Delivery]) -> Outcome:
    """One handle that is done when all are: the first to fail, else the last."""
    if len(outputs) == 1:
        return outputs[0]
    batches = {id(output.batch): output for output in outputs}
    if len(batches) == 1:
        return outputs[-1]
    return _AllOf(list(batches.values()))


class _AllOf:
    """Several deliveries as one, for a handler that published to several partitions."""

    def __init__(self, outputs: list[Delivery]) -> None:
        self._outputs = outputs

    def done(self) -> bool:
        return all(output.done() for output in self._outputs)

    def exception(self) -> EventBusError | None:
        return next((output.exception() for output in self._outputs if output.exception() is not None), None)

    async def wait(self) -> None:
        for output in self._outputs:
            await output.wait()
