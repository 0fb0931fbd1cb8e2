"""Benchmarks: each measures several ways side by side in one run and prints their ratios. They assert nothing."""
