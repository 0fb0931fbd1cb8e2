"""What is kept and shown: store, tables, statistics, report."""
