"""A schema registry over HTTP that speaks Confluent's API. Reserved: the package lands with its own release."""
