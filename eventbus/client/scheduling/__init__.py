"""Records for later: ``send(..., delay=)``, `cancel_scheduled`, and functions that run at times (``@bus.every``)."""
