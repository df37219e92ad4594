"""One module per API key, named as Kafka names the API. A module with an ``API`` is served and listed to clients."""
