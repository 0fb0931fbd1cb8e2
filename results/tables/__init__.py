"""The tables of a run: their columns, and how they are written and read."""
