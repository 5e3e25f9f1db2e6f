"""Benchmarks: timing on a GPU, records of what was measured, the suites of shapes."""
