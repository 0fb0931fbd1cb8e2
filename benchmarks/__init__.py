"""Benchmarks: each prints ratios of ways that are measured side by side in one run. They assert nothing."""
