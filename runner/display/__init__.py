"""What a user sees of a run: events, progress, status, plans, metrics."""
