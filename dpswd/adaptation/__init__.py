"""Adaptation of a classifier to private records."""
