"""Mixtures of normal distributions from a few releases: the one-shot generator."""
