"""The embedded log on the network: Kafka's wire protocol over TCP, for any Kafka client or tool.

It uses one event loop and plain functions: a request is a frame received into a buffer of its size, decoded by a
generated reader, handled by the function of its API key (`eventbus.server.apis`), and answered immediately or later, in
order per connection.

- ``server``, ``node``, ``acceptor``, ``connection``, ``call``: from the socket to a call, and its answer
- ``apis``: a module for each API key
- ``security``: SASL (PLAIN, SCRAM, OAUTHBEARER), TLS, permissions and quotas
- ``coordinators``, ``admin``: code that the APIs of groups, transactions and administration share
- ``gate``: limits on connections, bytes and time
- ``config``, ``properties``, ``broker_configs``, ``config_resources``: settings, ``server.properties``, config APIs
"""

from eventbus.server.config import Listener, ServerConfig
from eventbus.server.server import Server

__all__ = ["Listener", "Server", "ServerConfig"]
