"""AsyncAPI 3 documents of what a bus sends and receives.

``asyncapi_document(bus)`` sends no requests and starts nothing. `payloads` turns types into schemas, `servers` a URL
into servers, `document` the declarations into the rest.
"""

from __future__ import annotations

from eventbus.asyncapi.document import asyncapi_document

__all__ = ["asyncapi_document"]
