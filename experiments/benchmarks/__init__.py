"""Measurements behind docs/performance.md: ``python -m experiments.benchmarks``."""
