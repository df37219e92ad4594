"""AsyncAPI 3 documents of what a bus sends and receives, and the effects of changes.

``asyncapi_document(bus)`` sends no requests and starts nothing. `payloads` turns types into schemas, `servers` a URL
into servers, `document` the declarations into the rest; `reading` loads a document, `narrowing` compares two schemas,
`changes` two documents; `page` writes the HTML.
"""

from __future__ import annotations

from eventbus.asyncapi.changes import Change, changes_between
from eventbus.asyncapi.document import asyncapi_document
from eventbus.asyncapi.page import html_page
from eventbus.asyncapi.reading import read_document

__all__ = ["Change", "asyncapi_document", "changes_between", "html_page", "read_document"]
