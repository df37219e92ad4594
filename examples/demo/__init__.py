"""336,776 real flights through the bus and into a warehouse, checked against a loop over the CSV: ``make demo``."""
