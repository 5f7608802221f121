"""Mixtures of normal distributions from a few releases: the one-shot generator."""

from dpswd.mixture.fitting import fit

__all__ = ["fit"]
