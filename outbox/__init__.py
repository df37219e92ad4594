"""Transactional outbox and inbox on any SQL database. Reserved: the package lands with its own release."""
