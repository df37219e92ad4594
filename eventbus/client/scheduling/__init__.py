"""Scheduled records: ``send(..., delay=)``, `cancel_scheduled`, and functions called at times (``@bus.every``)."""
