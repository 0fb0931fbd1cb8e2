"""What each command does between claiming a run directory and writing the report."""
