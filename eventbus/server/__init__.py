"""The embedded log on the network: Kafka's wire protocol over TCP, for any Kafka client or tool.

It uses one event loop and plain functions: a request is a frame received into a buffer of its size, decoded by a
generated reader, handled by the function of its API key (`eventbus.server.apis`), and answered immediately or later, in
order per connection.
"""

from eventbus.server.config import Listener, ServerConfig
from eventbus.server.server import Server

__all__ = ["Listener", "Server", "ServerConfig"]
