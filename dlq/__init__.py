"""Retry topics, dead letters and redrive. Reserved: the package lands with its own release."""
