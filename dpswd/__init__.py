"""Differentially private sliced Wasserstein distance."""

__version__ = "0.1.0"
