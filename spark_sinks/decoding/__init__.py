"""Records to rows: what the values of a topic are, and the columns that a table gets of them."""
