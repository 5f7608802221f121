"""Time and memory of the library: ``python -m experiments run benchmarks``."""
