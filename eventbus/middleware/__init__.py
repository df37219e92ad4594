"""Ready-made middleware: logging, deduplication, a rate limit, and a claim check for large values.

Each is used like any middleware: ``EventBus(middleware=[...])``, a `Router`, or one handler. `ClaimCheck` also acts on
sends, and is included: ``bus.include(ClaimCheck(...))``.
"""

from eventbus.errors import ClaimError
from eventbus.middleware.claim_check import ClaimCheck, Directory, Store
from eventbus.middleware.deduplication import Deduplication
from eventbus.middleware.logging import Logging
from eventbus.middleware.rate_limit import RateLimit

__all__ = ["ClaimCheck", "ClaimError", "Deduplication", "Directory", "Logging", "RateLimit", "Store"]
